-- The placement that a spawn's options ask for: `placement` ANDed with the shorthands and the params blob, in normal form.
-- affinity_tags: node labels must contain them. affinity_with / anti_affinity_with: prefer that node / to be away from it.
-- Raises: QHA01, QHC03, QHC04, QHW01.
create or replace function hwqueue.spawn_placement(p_options jsonb, p_field text) returns jsonb
language plpgsql stable
as $$
declare
  v_placement jsonb := hwqueue.normalise_placement(p_options -> 'placement', p_field || '.placement');
  v_required jsonb := hwqueue.normalise_tags(p_options -> 'affinity_tags', p_field || '.affinity_tags');
  v_with uuid := hwqueue.json_uuid(p_options -> 'affinity_with', p_field || '.affinity_with', 'QHC03');
  v_away uuid := hwqueue.json_uuid(p_options -> 'anti_affinity_with', p_field || '.anti_affinity_with', 'QHC03');
  v_blob bytea := hwqueue.wire_blob(p_options -> 'wire', p_field || '.wire');
  v_preferred jsonb := '[]'::jsonb;
  v_wire jsonb;
begin
  if v_with is not null then
    v_preferred := v_preferred || hwqueue.normalise_preferences(jsonb_build_array(
      jsonb_build_object('when', jsonb_build_object('node', v_with))), p_field || '.affinity_with');
  end if;
  if v_away is not null then
    v_preferred := v_preferred || hwqueue.normalise_preferences(jsonb_build_array(
      jsonb_build_object('when', jsonb_build_object('node', v_away, 'away', true))), p_field || '.anti_affinity_with');
  end if;
  if v_required <> '[]' or v_preferred <> '[]' then
    v_placement := hwqueue.check_cost(
      hwqueue.merge_placements(v_placement, jsonb_build_object('require', v_required, 'prefer', v_preferred), p_field), p_field);
  end if;
  if v_blob is not null then
    -- read like any placement: what normalise_placement would refuse, a blob must not bring in
    v_wire := hwqueue.normalise_placement(hwqueue.wire_placement(hwqueue.parse_wire(v_blob, p_field || '.wire')), p_field || '.wire');
    v_placement := hwqueue.check_cost(hwqueue.merge_placements(v_placement, v_wire, p_field), p_field);
  end if;
  return v_placement;
end
$$;
