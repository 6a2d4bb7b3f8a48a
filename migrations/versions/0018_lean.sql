-- Functions that are gone, or take something else than they did.

drop function if exists hwqueue.kept_out_of(hwqueue.placement_class, uuid, hwqueue.node, jsonb, int);
