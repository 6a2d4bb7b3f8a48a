-- Which classes a claim may take.

-- A claim tries a bounded number of classes. The node's next claim goes on behind the last of them.
alter table hwqueue.node_state add column next_constrained_class bigint not null default 0;
comment on column hwqueue.node_state.next_constrained_class is 'the class that its last claim tried when it gave up; the next such claim begins behind it';

-- A node that has met a class whose terms are not in force takes a step for them in its next claim.
alter table hwqueue.node_state add column awaits_terms boolean not null default false;
comment on column hwqueue.node_state.awaits_terms is 'its claims take a step for terms that wait to be in force, as long as there are any';
update hwqueue.node_state s set awaits_terms = true
where exists (select 1 from hwqueue.affinity_term t where t.shard_id = s.shard_id and t.published_at is null);

-- A class that must be with a lease which has not started yet is no candidate.
alter table hwqueue.placement_class add column waits boolean not null default false;
comment on column hwqueue.placement_class.waits is 'it must be with a lease that has not started yet: nobody judges it before that';
alter table hwqueue.placement_class add column is_woken boolean not null default false;
comment on column hwqueue.placement_class.is_woken is 'created_xid is of the transaction that made it a candidate, not of the one that wrote it';
create index placement_class_waits on hwqueue.placement_class (shard_id, class_id) where waits;

-- Requirements about one lease are decided for all classes at once, too.
alter table hwqueue.class_rule add column lease_id uuid;
comment on column hwqueue.class_rule.lease_id is 'the lease that the term names; null: it selects by what classes are';
comment on table hwqueue.class_rule is
  'the terms of a class: away, toward, cap and skew that are required on their own keep it from a node by what runs in its place (most: of cap and skew, the limit); known: any other, of which it must be known what runs';
create index class_rule_lease on hwqueue.class_rule (shard_id, lease_id) where lease_id is not null;
insert into hwqueue.class_rule (shard_id, class_id, term_id, use, most, is_self, lease_id)
select c.shard_id, c.class_id, t.term_id, t.use, null, (s.value -> 'self')::boolean, (t.spec #>> '{all,0,lease}')::uuid
from hwqueue.placement_class c
cross join lateral jsonb_array_elements(c.required) e
cross join lateral (select c.terms -> (e.value ->> 'term')::int as value) s
join hwqueue.affinity_term t on t.shard_id = c.shard_id and t.digest = (s.value ->> 'digest')::bigint
where c.terms <> '[]' and c.terms_written and e.value ? 'term' and t.spec #> '{all,0,lease}' is not null;
drop function if exists hwqueue.note_blocked(hwqueue.node_state, boolean, int);
drop function if exists hwqueue.judge_classes(hwqueue.node, hwqueue.node_state, int);

-- Replaced by decide_class and take_entries: the class decides first, the entry is locked last.
drop function if exists hwqueue.try_front(hwqueue.node_state, int, text[], int, bigint, bigint, bigint[], hwqueue.headroom, int, timestamptz, int);
drop function if exists hwqueue.try_best(bigint[], double precision[], bigint[], uuid, int[], int, int, int, timestamptz, int);
drop function if exists hwqueue.enter_first(tid[], bigint[], uuid, boolean, timestamptz, int);
drop function if exists hwqueue.lock_patient(bigint, smallint, bigint, timestamptz, timestamptz, int);
drop type if exists hwqueue.first_entered;
