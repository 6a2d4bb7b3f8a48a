-- A label with very many values (a host name, an instance id) makes a profile of each node, and every profile
-- is judged for every class. While no class mentions such a label, nodes that differ in nothing else may run
-- the same. So their profiles are judged as one (profile.judged_as): a profile without those labels
-- (left_out), that no node registers with. node_state has the profile that is judged, node the whole one, by
-- which all else goes. When a class comes to mention a left-out label `suits` refuses it for the profile
-- without the label. So no claim can be granted wrongly. reap then gives each of the nodes its own profile
-- again (split_profiles), and until it has, the class waits.

-- How many values of a label there may be before it is left out.
create or replace function hwqueue.most_label_values() returns int
language sql immutable parallel safe
as $$ select 1000 $$;

-- Whether what a class asks of nodes may mention one of these labels. By its text, so rather once too often
-- than once too few.
create or replace function hwqueue.mentions_label(p_class hwqueue.placement_class, p_keys text[]) returns boolean
language sql immutable parallel safe
as $$
  select exists (
    select 1 from unnest(p_keys) k
    where position(substr(to_jsonb(k)::text, 2, length(to_jsonb(k)::text) - 2)
                   in p_class.required::text || p_class.preferred::text) > 0)
$$;

-- Which of these labels are left out. A label is found to have too many values when a profile is new and
-- there are many profiles already. One that a class mentions, or has mentioned since, is never left out
-- again.
-- Locks: new rows of left_out_label.
create or replace function hwqueue.left_out_labels(p_labels jsonb, p_shard int) returns text[]
language plpgsql volatile
as $$
declare
  v_many int := hwqueue.most_label_values();
  v_grown text[];
  v_keys text[];
begin
  if (select count(*) from (select 1 from hwqueue.profile p where p.shard_id = p_shard limit v_many) x) = v_many then
    -- those that may have got one value too many with this node: counting the values of a label reads all
    -- profiles, and most new profiles bring no new value
    v_grown := array(
      select l.key from jsonb_each(p_labels) l
      where not exists (select 1 from hwqueue.left_out_label o where o.shard_id = p_shard and o.key = l.key)
        and not exists (select 1 from hwqueue.profile p where p.shard_id = p_shard and p.labels -> l.key = l.value));
    v_keys := case when v_grown = '{}' then v_grown else array(
      select l.key
      from hwqueue.profile p cross join lateral jsonb_each(p.labels) l
      where p.shard_id = p_shard and l.key = any (v_grown)
      group by l.key having count(distinct l.value) >= v_many order by l.key) end;
    -- in one statement with what it sees, so that reap reads the classes that this cannot see
    insert into hwqueue.left_out_label (shard_id, key, is_mentioned, unseen, next_xid)
    select p_shard, k, exists (
             select 1 from hwqueue.placement_class c
             where c.shard_id = p_shard and not c.is_pinned and hwqueue.mentions_label(c, array[k])), s.unseen, s.next_xid
    from unnest(v_keys) k cross join hwqueue.seen_now() s
    on conflict do nothing;
  end if;
  return array(
    select o.key from hwqueue.left_out_label o
    where o.shard_id = p_shard and p_labels ? o.key and not o.is_mentioned order by o.key);
end
$$;

-- The profiles that are judged as this one, and itself.
create or replace function hwqueue.profiles_judged_as(p_profile_id bigint, p_shard int) returns bigint[]
language plpgsql stable
as $$
begin
  return array(
    select p.profile_id from hwqueue.profile p
    where p.shard_id = p_shard and p.judged_as = p_profile_id) || p_profile_id;
end
$$;
