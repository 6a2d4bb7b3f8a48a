alter table hwqueue.shard add column node_expiry interval default '7 days';
comment on column hwqueue.shard.node_expiry is
  'how long a node may be silent before prune deregisters it; null: for ever; set_node_expiry';
