-- What it costs to judge a placement.

alter table hwqueue.placement_class add column cost int not null default 1 check (cost > 0);
comment on column hwqueue.placement_class.cost is 'what judging a node for it costs at most, in plain expressions (placement_cost)';
-- of a pattern with bounds the most that it can have been when it was accepted
update hwqueue.placement_class c
set cost = w.cost
from (
  select p.shard_id, p.class_id, greatest(1, jsonb_array_length(jsonb_path_query_array(p.placement,
           'strict $.** ? (exists(@.label) || exists(@.tags) || exists(@.node) || exists(@.rack) || exists(@.resource) || exists(@.trust)
             || exists(@.lease) || exists(@.service) || exists(@.leases))', '{}', true))
         + 3 * coalesce((
             select sum(case when e.value ->> 'op' = 'regexp' and e.value #>> '{values,0}' like '%{%' then 500 else length(e.value #>> '{values,0}') end)
             from jsonb_array_elements(jsonb_path_query_array(p.placement,
               'strict $.** ? (exists(@.label) && exists(@.values) && (@.op == "regexp" || @.op == "version" || @.op == "semver"))', '{}', true)) e), 0)
         )::int as cost
  from hwqueue.placement_class p where p.placement <> '{}') w
where c.shard_id = w.shard_id and c.class_id = w.class_id and w.cost > 1;

drop function if exists hwqueue.regexp_danger(text);
drop function if exists hwqueue.reap_classes(bigint, int, int);
drop function if exists hwqueue.expire_claims(int, timestamptz, int, timestamptz);
