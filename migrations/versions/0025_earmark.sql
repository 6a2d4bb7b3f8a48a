-- == Earmarks ==
-- A reservation may book room that is still in use. The node of such a claim takes no other work into that
-- room, and fetches the claim once the room is free.

alter table hwqueue.claim add column is_earmark boolean;
comment on column hwqueue.claim.is_earmark is
  'reserved, and its room is still in use by others: its node cannot fetch it yet; null: of all others';

drop function if exists hwqueue.core_use_of_claims(hwqueue.node);
drop function if exists hwqueue.node_usage_of_claims(hwqueue.node);
