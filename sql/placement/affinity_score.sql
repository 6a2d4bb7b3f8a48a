-- How well a node suits a class's preferences: 100 x matched signed sum / sum of absolute weights, -100..100; 0 without any.
-- (Nomad's affinity score, in percent.)
-- Locks: none. Raises: nothing. Idempotent: yes.
create or replace function hwqueue.affinity_score(p_preferred jsonb, p_labels jsonb, p_rack bigint, p_node uuid, p_resources uuid[])
returns double precision
language sql immutable parallel safe
as $$
  select coalesce(
    100 * sum((p.value ->> 'weight')::double precision)
            filter (where hwqueue.exprs_hold(p.value -> 'when', p_labels, p_rack, p_node, p_resources))
        / sum(abs((p.value ->> 'weight')::double precision)), 0)
  from jsonb_array_elements(p_preferred) p
$$;
