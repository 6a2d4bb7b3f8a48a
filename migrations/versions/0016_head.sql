-- A queue has a mark from the start, that of the tier and rank of most leases: the first claims find its head as later ones do.
update hwqueue.low_water w set tiers = '{0}', ranks = '{0}', positions = '{0}', moved = array[w.version]
where w.class_id = 0 and w.tiers = '{}';

-- What look_at_queue and look_at_queues say.
create type hwqueue.queue_look as (
  queue_id int, name text, claim_timeout interval, window_size int, classes bigint[], task_names text[], most_cpu_milli bigint,
  most_memory_mib bigint, marks int, tier smallint, rank bigint, position bigint, last bigint, is_first boolean, queue_ids int[]
);
drop function if exists hwqueue.look_at_queue(text, bigint, xid8, xid8[], timestamptz, int);
