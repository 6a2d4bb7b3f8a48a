-- Items that a step adds to itself while it runs.
--
-- api/children.add_items calls add_to_step while it holds the claim of a lease of the step. Example: the
-- handler of "crawl" finds 40 links and adds 40 items. Its step has 40 items and its own lease to wait for,
-- so it is open until the last of these 41 leases has ended. Its result is what the handler returned.
--
-- A task that adds its first item gets what a map has: a row in map, and a tally of its items. Its own
-- lease becomes item -1, so whatever ends that counts it. From then on workflows/items and
-- workflows/ending do the rest: the window, failures, retries, stops. Items of a map, and added ones, add
-- behind the others of their step.
--
-- Invariant: a lease that adds is open, and its claim is held until that commits. So its end is counted when
-- what it has added is visible, and the step cannot end between the two. No tally is locked, because a
-- handler's transaction may stay open: an arrival says that the window is to be filled.
--
-- Read add_to_step first, then begin_adding.

-- Reads items as add_items takes them: [{"name", "task", "params"}].
-- Raises: QHA01.
create or replace function hwqueue.read_added(p_items jsonb, p_lease hwqueue.lease)
returns hwqueue.added_item[]
language plpgsql stable
as $$
declare
  v_most int := (
    select q.max_params_bytes from hwqueue.queue q where q.queue_id = p_lease.queue_id);
  v_item record;
  v_field text;
  v_one hwqueue.added_item := row(p_lease.run_id, p_lease.step_no, null, null, null, null);
  v_items hwqueue.added_item[] := '{}';
begin
  for v_item in
    select e.value, e.ordinality - 1 as place
    from jsonb_array_elements(hwqueue.json_list(p_items, 'p_items', 10000, 'a list of at most 10000 items',
      'for example [{"name": "page-1", "params": {"url": "..."}}]')) with ordinality e
  loop
    v_field := format('p_items[%s]', v_item.place);
    perform hwqueue.check_object(v_item.value, array['name', 'task', 'params'], v_field);
    v_one.name := hwqueue.json_text(v_item.value -> 'name', v_field || '.name', 200);
    if v_one.name is null then
      perform hwqueue.refuse('QHA01', format('%s has no name', v_field),
        jsonb_build_object('field', v_field || '.name'),
        'name it: a handler that runs again adds each name once');
    end if;
    v_one.task_name := coalesce(hwqueue.json_text(v_item.value -> 'task', v_field || '.task', 200),
      p_lease.task_name);
    perform hwqueue.check_name(v_one.task_name, v_field || '.task', 200),
      hwqueue.check_payload(v_item.value -> 'params', v_field || '.params', v_most);
    v_one.params := coalesce(v_item.value -> 'params', '{}');
    v_items := v_items || v_one;
  end loop;
  return v_items;
end
$$;

-- Adds items to the step of a lease, and returns all of them with their numbers, in the order of the list.
-- created: not for a name that the step has already.
-- Locks: the caller holds the claim; the step's row in map. Raises: QHA01, QHT01 for a name that has another
-- task or other params, QHF07. Idempotent.
create or replace function hwqueue.add_to_step(p_lease hwqueue.lease, p_items jsonb)
returns table (name text, item int, created boolean)
language plpgsql volatile
as $$
declare
  v_items hwqueue.added_item[] := hwqueue.read_added(p_items, p_lease);
  v_item hwqueue.added_item;
  v_known hwqueue.added_item;
  v_first int;
  v_next int;
begin
  if v_items = '{}' then
    return;
  elsif p_lease.item_no is null then
    perform hwqueue.begin_adding(p_lease);
  end if;
  select m.items into v_first from hwqueue.map m
  where m.run_id = p_lease.run_id and m.step_no = p_lease.step_no
  for no key update;
  v_next := v_first;
  foreach v_item in array v_items loop  -- statements after the lock: they see what others have added
    select a.* into v_known from hwqueue.added_item a
    where a.run_id = p_lease.run_id and a.step_no = p_lease.step_no and a.name = v_item.name;
    created := not found;
    if created then
      v_item.item_no := v_next;
      v_next := v_next + 1;
      insert into hwqueue.added_item select v_item.*;
    elsif (v_known.task_name, v_known.params) <> (v_item.task_name, v_item.params) then
      perform hwqueue.refuse('QHT01', format('item %s was added with another task or other params',
          to_json(v_item.name)),
        jsonb_build_object('name', v_item.name, 'item', v_known.item_no, 'task', v_known.task_name),
        'use a name for one content only');
    end if;
    name := v_item.name;
    item := coalesce(v_item.item_no, v_known.item_no);
    return next;
  end loop;
  if v_next > 100000 then
    perform hwqueue.refuse('QHF07', format('the step would have %s items', v_next),
      '{"field": "p_items", "limit": 100000}', 'let each item do more');
  elsif v_next > v_first then
    update hwqueue.map m set items = v_next, added = m.added + v_next - v_first
    where m.run_id = p_lease.run_id and m.step_no = p_lease.step_no;
    insert into hwqueue.arrival (run_id, step_no, kind, unmet, at, tenant)
    values (p_lease.run_id, p_lease.step_no, 'item', 1, hwqueue.clock(),
      coalesce(p_lease.tenant, hwqueue.run_tenant(p_lease.run_id)));
  end if;
end
$$;

-- Lets the step of a lease have items: its own lease is one of them from now on.
-- Locks: the caller holds the claim, for no key update; the lease row; new rows.
create or replace function hwqueue.begin_adding(p_lease hwqueue.lease) returns void
language plpgsql volatile
as $$
begin
  update hwqueue.claim c set is_step = false where c.lease_id = p_lease.lease_id;
  update hwqueue.lease l set item_no = -1 where l.lease_id = p_lease.lease_id;
  insert into hwqueue.map (run_id, step_no, items, params) values (p_lease.run_id, p_lease.step_no, 0, '{}');
  delete from hwqueue.tally t  -- from before a retry
  where t.run_id = p_lease.run_id and t.step_no = p_lease.step_no and t.part > 0;
  insert into hwqueue.tally (run_id, step_no, part, arrived, low)
  values (p_lease.run_id, p_lease.step_no, 1, -1, 0);
end
$$;

-- The runs that were added to a step: how many of them are open, or are to be retried, and how many of the
-- others have failed or were cancelled.
create or replace function hwqueue.count_added_runs(p_run uuid, p_step int, out open int,
  out failed int, out cancelled int)
language sql stable
as $$
  select (count(*) filter (where n.finished_at is null or a.retry_mode is not null))::int,
         (count(*) filter (where n.state = 'failed' and a.retry_mode is null))::int,
         (count(*) filter (where n.state = 'cancelled' and a.retry_mode is null))::int
  from hwqueue.added_run a
  join hwqueue.run n on n.run_id = a.nested_run_id
  where a.run_id = p_run and a.step_no = p_step
$$;
