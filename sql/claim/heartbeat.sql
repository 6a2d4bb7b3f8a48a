-- Heartbeats: the checks of their arguments, and the verdicts on claims that were not extended.
--
-- heartbeat_node (api/claims) does the usual case itself, and calls this module for the rest. An
-- example: a worker names three claims, of which one was cancelled and one expired; heartbeat_others
-- returns cancelled and lost.
--
-- Invariant: a heartbeat waits for no lock.

-- Checks the arguments of a heartbeat one by one, when they do not read back as they were written.
-- Raises QHA01, naming the element.
create or replace function hwqueue.check_heartbeat(p_claims jsonb, p_extend interval) returns void
language plpgsql immutable
as $$
declare
  v_item jsonb;
  v_field text;
begin
  if p_extend is not null then
    perform hwqueue.check_extend(p_extend);
  end if;
  if jsonb_typeof(coalesce(p_claims, '[]')) <> 'array' then
    perform hwqueue.refuse('QHA01', 'p_claims must be a JSON array', jsonb_build_object('field', 'p_claims'),
      'for example [{"lease_id": "...", "claim_token": 1}]');
  end if;
  for v_item, v_field in
    select e.value, format('p_claims[%s]', e.ordinality - 1)
    from jsonb_array_elements(coalesce(p_claims, '[]')) with ordinality e
  loop
    perform hwqueue.check_object(v_item, array['lease_id', 'claim_token'], v_field);
    if hwqueue.json_uuid(v_item -> 'lease_id', v_field || '.lease_id') is null
       or hwqueue.json_integer(v_item -> 'claim_token', v_field || '.claim_token', 0,
           9223372036854775807) is null then
      perform hwqueue.refuse('QHA01', format('%s needs lease_id and claim_token', v_field),
          jsonb_build_object('field', v_field),
        'pass both as claim_task gave them');
    end if;
  end loop;
end
$$;

-- Checks that an extension is from one second to 30 days. Raises QHA01.
create or replace function hwqueue.check_extend(p_extend interval) returns void
language plpgsql immutable
as $$
begin
  if p_extend is null or p_extend < interval '1 second' or p_extend > interval '30 days'
    or not isfinite(p_extend) then
    perform hwqueue.refuse('QHA01', format('p_extend must be from one second to 30 days, got %s',
        coalesce(p_extend::text, 'null')),
      jsonb_build_object('field', 'p_extend'),
        'give a span such as interval ''5 minutes'', and extend it again');
  end if;
end
$$;

-- Refuses a node that is not registered, not the caller's or not at this epoch. A node that is all that,
-- but that another session holds, passes.
-- Raises QHN01, QHN03, QHN04.
create or replace function hwqueue.check_epoch(p_node uuid, p_epoch bigint, p_shard int) returns void
language plpgsql volatile
as $$
declare
  v_epoch bigint;
  v_login text;
begin
  select s.node_epoch, s.login into v_epoch, v_login from hwqueue.node_state s
  where s.shard_id = p_shard and s.node_id = p_node;
  perform hwqueue.check_login(p_node, v_login, p_shard);
  if (v_epoch = p_epoch) is not true then
    perform hwqueue.refuse_epoch(p_node, v_epoch, coalesce(p_epoch, 0), p_shard);
  end if;
  perform hwqueue.read_node(p_node, p_shard);
end
$$;

-- The verdicts on the claims of a heartbeat that were not extended: another session holds them, or they
-- are gone.
create or replace function hwqueue.heartbeat_others(p_node uuid, p_leases uuid[], p_tokens bigint[],
  p_held uuid[], p_now timestamptz, p_shard int)
returns table (lease_id uuid, verdict text, expires_at timestamptz, shard_id int, claim_token bigint)
language sql stable
as $$
  select distinct b.lease_id,
         case when c.stop_requested_at <= p_now then c.stop_reason
              when c.lease_id is not null then 'ok'
              when hwqueue.lease_state(b.lease_id, p_shard) = 'cancelled' then 'cancelled'
              when exists (
                select 1 from hwqueue.outcome o
                where o.shard_id = p_shard and o.lease_id = b.lease_id and o.claim_token = b.claim_token
                  and o.node_id = p_node and o.state = 'completed') then 'finished'
              else 'lost' end,
         c.expires_at, p_shard, b.claim_token
  from unnest(p_leases, p_tokens) b(lease_id, claim_token)
  left join hwqueue.claim c
    on c.shard_id = p_shard and c.lease_id = b.lease_id and c.claim_token = b.claim_token
      and c.node_id = p_node
  where c.lease_id is null or c.lease_id <> all (p_held)
$$;
