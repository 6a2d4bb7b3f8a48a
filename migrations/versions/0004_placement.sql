drop function if exists hwqueue.find_profile(jsonb, bigint, timestamptz, int);

-- isolation: cores and devices that leases have to themselves
drop function if exists hwqueue.shortage(bigint, bigint, int, int, uuid[], jsonb, hwqueue.headroom);
drop function if exists hwqueue.lacking(hwqueue.placement_class, hwqueue.headroom);
drop function if exists hwqueue.choose_devices(int, int, uuid[], hwqueue.headroom);
drop function if exists hwqueue.suits(hwqueue.placement_class, hwqueue.profile, uuid, uuid[]);
drop function if exists hwqueue.eligible_classes(bigint, uuid, int, int);
drop function if exists hwqueue.claim_assignment(hwqueue.placement_class, hwqueue.node, jsonb);
drop function if exists hwqueue.take_room(hwqueue.placement_class, hwqueue.node, int[], hwqueue.node_load);
drop function if exists hwqueue.adopted_devices(hwqueue.placement_class, hwqueue.node, hwqueue.node_load, jsonb);
drop function if exists hwqueue.node_usage_of_claims(hwqueue.node);

alter table hwqueue.node
  add column cpu_isolation text[] not null default '{best_effort}',
  add column gpu_exclusivity text[] not null default '{shared}',
  add column default_cpu_isolation text not null default 'best_effort',
  add column gpu_share_mode text not null default 'fractional',
  add column core_ids int[] not null default '{}',
  add column core_numa int[] not null default '{}',
  add column gpu_parents uuid[] not null default '{}';
comment on column hwqueue.node.cpu_isolation is 'classes honoured, as is gpu_exclusivity; best_effort and shared always are';
comment on column hwqueue.node.core_ids is 'cores that are counted one by one, in the order of cores; empty unless whole cores are honoured';
comment on column hwqueue.node.gpu_parents is 'of each device, the one that it is a part of; null: a whole device; empty: all are whole';

alter table hwqueue.profile
  add column cpu_isolation text[] not null default '{best_effort}',
  add column gpu_exclusivity text[] not null default '{shared}',
  add column default_cpu_isolation text not null default 'best_effort',
  add column gpu_share_mode text not null default 'fractional';

-- not null: what changes in a row between two others would be written to the log again with a null
alter table hwqueue.node_load add column core_used int[] not null default '{}';
comment on column hwqueue.node_load.core_used is 'thousandths in use, core by core, in the order of node.core_ids';

alter table hwqueue.placement_class
  add column cpu_isolation text,
  add column gpu_exclusivity text;
comment on column hwqueue.placement_class.cpu_isolation is 'the class asked for; null: whatever the node''s default is. Likewise gpu_exclusivity';

alter table hwqueue.profile_eligibility
  add column cpu_isolation text,
  add column gpu_exclusivity text;
alter table hwqueue.node_eligibility
  add column cpu_isolation text,
  add column gpu_exclusivity text;
comment on column hwqueue.profile_eligibility.cpu_isolation is 'what the class comes to here, the default filled in; null: best_effort. Likewise gpu_exclusivity: null is shared';
comment on column hwqueue.node_eligibility.cpu_isolation is 'as in profile_eligibility';

alter type hwqueue.headroom
  add attribute core_milli bigint,
  add attribute core_whole int,
  add attribute core_numa int,
  add attribute gpu_parts int[],
  add attribute gpu_parts_free int;
