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
  'the terms by whose count in a node''s own place a class is kept from it; away, toward, cap and skew that are required on their own; most: of cap and skew, the limit';
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

-- engine: the terms that a claim touches are read once
drop function if exists hwqueue.touched_terms(hwqueue.placement_class, uuid, hwqueue.node, int);
drop function if exists hwqueue.count_fact(bigint, text, boolean, boolean, jsonb, timestamptz, int);
create type hwqueue.touched_term as (term_id bigint, use text, domain text, place text, decides boolean, counts boolean);

-- engine: max_skew without a walk over all nodes
drop function if exists hwqueue.add_term(text, jsonb, text, hwqueue.placement_class, jsonb);
drop function if exists hwqueue.terms_reason(hwqueue.placement_class, uuid, hwqueue.node, jsonb, boolean, timestamptz, int);
drop function if exists hwqueue.enter_first(tid[], bigint[], uuid, timestamptz, int);
drop function if exists hwqueue.enter_terms(hwqueue.placement_class, uuid, hwqueue.node, timestamptz, int);
alter type hwqueue.first_entered add attribute unlooked bigint, add attribute is_open boolean;

alter table hwqueue.node_state add column moved_xid xid8 not null default '0';
comment on column hwqueue.node_state.moved_xid is 'the transaction that last changed what the node is, or in which it came back to life';
create index node_state_moved on hwqueue.node_state (moved_xid);

alter table hwqueue.term_count add column dropped_xid xid8;
comment on column hwqueue.term_count.dropped_xid is 'of max_skew: the transaction that last took leases away; null for other terms';
update hwqueue.term_count k set dropped_xid = '0' from hwqueue.term t where t.shard_id = k.shard_id and t.term_id = k.term_id and t.use = 'skew';
create index term_count_dropped on hwqueue.term_count (term_id, dropped_xid) where dropped_xid is not null;

create table hwqueue.spread_fleet (
  shard_id int not null,
  fleet_key bigint not null,
  fleet_id bigint generated always as identity,
  places text[] not null,
  place_count int not null,
  places_digest bigint not null,
  dead uuid[] not null,
  live_until timestamptz not null,
  unseen xid8[] not null,
  next_xid xid8 not null,
  primary key (shard_id, fleet_key, fleet_id)
);
comment on table hwqueue.spread_fleet is 'where leases may spread to: the places of live nodes, for a domain and a kind of nodes; the newest row counts';
comment on column hwqueue.spread_fleet.dead is 'nodes there that were dead and had claims';
comment on column hwqueue.spread_fleet.live_until is 'until then no node can have died that lived';
comment on column hwqueue.spread_fleet.next_xid is 'it knows nothing of transactions from this one on, nor of those in unseen';

create table hwqueue.spread_floor (
  shard_id int not null,
  term_id bigint not null,
  floor_id bigint generated always as identity,
  places_digest bigint not null,
  least bigint not null,
  lowest text[] not null,
  unseen xid8[] not null,
  next_xid xid8 not null,
  primary key (shard_id, term_id, floor_id)
);
comment on table hwqueue.spread_floor is 'the fewest leases of a max_skew term in one of the places of spread_fleet, when somebody last looked; the newest row counts';
comment on column hwqueue.spread_floor.lowest is 'up to 64 of the places that had so few';

-- engine: patience asks the fleet once, not at each claim
drop function if exists hwqueue.waits_for(hwqueue.placement_class, hwqueue.node, timestamptz, timestamptz, int);
drop function if exists hwqueue.extreme_affinity(hwqueue.placement_class, double precision, int, timestamptz, int);
create table hwqueue.class_range (
  shard_id int not null,
  class_id bigint not null,
  range_id bigint generated always as identity,
  best double precision,
  worst double precision,
  live_until timestamptz not null,
  unseen xid8[] not null,
  next_xid xid8 not null,
  primary key (shard_id, class_id, range_id)
);
comment on table hwqueue.class_range is
  'how well the best and the worst of the live nodes that could run a class suit it, when somebody last looked; the newest row counts';
comment on column hwqueue.class_range.live_until is 'until then those two live; unseen and next_xid: as in spread_fleet';
