-- For operators. The functions and views come from sql/.

-- engine: what a class must meet in its own place, so that many classes can be asked at once
create table hwqueue.class_rule (
  shard_id int not null,
  class_id bigint not null,
  term_id bigint not null,
  use text not null,
  most bigint,
  is_self boolean not null
);
comment on table hwqueue.class_rule is
  'the terms by whose count in a node''s own place a class is kept from it; away, toward and cap that are required on their own';
create index class_rule_class on hwqueue.class_rule (shard_id, class_id);
insert into hwqueue.class_rule (shard_id, class_id, term_id, use, most, is_self)
select c.shard_id, c.class_id, t.term_id, t.use, r.most, (c.terms #>> array[r.index, 'self'])::boolean
from hwqueue.placement_class c
cross join lateral (
  select e.value ->> 'term' as index, null::bigint as most from jsonb_array_elements(c.required) e where e.value ? 'term'
  union all
  select e.value ->> 'term', (e.value ->> 'max_per_domain')::bigint from jsonb_array_elements(c.spread) e where e.value ? 'max_per_domain'
) r
join hwqueue.term t on t.shard_id = c.shard_id and t.digest = (c.terms #>> array[r.index, 'digest'])::bigint
where c.terms <> '[]' and t.spec #> '{all,0,lease}' is null;

alter table hwqueue.node_state add column meets_blocked boolean not null default false;
comment on column hwqueue.node_state.meets_blocked is 'its last claims came upon classes that may not run there now: the next one asks all at once first';
drop function if exists hwqueue.take_front(bigint, xid8, int, text[], int, bigint, bigint, hwqueue.headroom, int, timestamptz, int);
