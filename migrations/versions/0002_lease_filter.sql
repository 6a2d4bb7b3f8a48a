alter type hwqueue.lease_filter
  add attribute lease_ids uuid[],
  add attribute labels jsonb,
  add attribute created_from timestamptz,
  add attribute created_before timestamptz,
  add attribute finished_from timestamptz,
  add attribute finished_before timestamptz,
  add attribute error_type text;

-- A page of the leases that a bulk call means. next_cursor: where the next page begins; null: at the end.
create type hwqueue.lease_page as (
  lease_ids uuid[],
  state text,
  next_cursor jsonb
);
