-- == Keys of leases that are requeued ==

drop function if exists hwqueue.lock_keys(uuid[], boolean, int);  -- held_keys has taken its place
