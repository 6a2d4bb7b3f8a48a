-- A queue has a mark from the start, that of the tier and rank of most leases: the first claims find its head as later ones do.
update hwqueue.low_water w set tiers = '{0}', ranks = '{0}', positions = '{0}', moved = array[w.version]
where w.class_id = 0 and w.tiers = '{}';

-- Scheduled leases are looked for elsewhere.
drop function if exists hwqueue.look_at_queue(text, bigint, xid8, xid8[], timestamptz, int);
