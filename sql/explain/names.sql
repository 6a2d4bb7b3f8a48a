-- Names that leases ask for and no live node has: queues, tasks, labels and their values, countables.
--
-- Explanations and pending_reasons call unserved_words and unknown_names, and say the name that was
-- probably meant. Claims never do: a similar name never matches.
--
-- Every search for a similar name is bounded: names of at most 64 characters, 200 of them, and at most
-- two edits.

-- Returns how many edits lead from one name to another: a letter inserted, deleted or replaced, or two
-- adjacent ones exchanged (Damerau-Levenshtein, optimal string alignment). Null: more than p_most.
create or replace function hwqueue.edit_distance(p_name text, p_other text, p_most int) returns int
language plpgsql immutable parallel safe
as $$
declare
  v_at int := 1;
  v_name text;
  v_other text;
begin
  if abs(length(p_name) - length(p_other)) > p_most then
    return null;
  end if;
  while v_at <= length(p_name) and substr(p_name, v_at, 1) = substr(p_other, v_at, 1) loop
    v_at := v_at + 1;
  end loop;
  v_name := substr(p_name, v_at);
  v_other := substr(p_other, v_at);
  if v_name = '' or v_other = '' then
    return length(v_name) + length(v_other);
  elsif p_most <= 0 then
    return null;
  end if;
  return 1 + least(
    hwqueue.edit_distance(substr(v_name, 2), substr(v_other, 2), p_most - 1),
    hwqueue.edit_distance(substr(v_name, 2), v_other, p_most - 1),
    hwqueue.edit_distance(v_name, substr(v_other, 2), p_most - 1),
    case when left(v_name, 2) = reverse(left(v_other, 2))
      then hwqueue.edit_distance(substr(v_name, 3), substr(v_other, 3), p_most - 1) end);
end
$$;

-- Returns what no typing error changes: digits, and words of one or two letters. us-east-1 is no error
-- for us-east-2 or eu-east-1, nor H100 for A100.
create or replace function hwqueue.fixed_part(p_name text) returns text
language sql immutable parallel safe
as $$ select regexp_replace(lower(p_name), '[[:alpha:]]{3,}|[^[:alnum:]]', '', 'g') $$;

-- Returns the name that is most similar to another one, whatever its case; null if none is within two
-- edits and a third of the length without its fixed part. Names of more than 64 characters have none.
create or replace function hwqueue.nearest_name(p_name text, p_names text[]) returns text
language plpgsql immutable parallel safe
as $$ begin return (
  with wanted as materialized (
    select f.fixed, least(2, (length(p_name) - length(f.fixed)) / 3) as most
    from (select hwqueue.fixed_part(p_name) as fixed) f
    where length(p_name) <= 64
  )
  select k.name
  from (
    select n.name, hwqueue.edit_distance(lower(p_name), lower(n.name), w.most) as edits
    from wanted w
    cross join lateral (
      select u.name from unnest(p_names) u(name)
      where length(u.name) <= 64 and abs(length(u.name) - length(p_name)) <= w.most and u.name <> p_name
        and hwqueue.fixed_part(u.name) = w.fixed
      limit 200) n) k
  where k.edits is not null
  order by k.edits, k.name collate "C" limit 1
); end $$;

-- Returns the queues and tasks that live nodes serve together. any_queue, any_task: one of them serves all.
-- declared: tasks for which their apps declare defaults.
create or replace function hwqueue.served_names(p_now timestamptz, out queues text[],
  out tasks text[], out any_queue boolean, out any_task boolean, out declared text[])
language plpgsql stable
as $$ begin
  with live as materialized (
    select distinct n.queues, n.tasks, n.declared
    from hwqueue.node n
    join hwqueue.node_state s on s.node_id = n.node_id
    where n.deregistered_at is null and hwqueue.is_live(n, s, p_now)
  )
  select array(select distinct q from live l, unnest(l.queues) q order by q),
         array(select distinct t from live l, unnest(l.tasks) t order by t),
         exists (select from live l where l.queues is null),
         exists (select from live l where l.tasks is null),
         array(select distinct t from live l, unnest(l.declared) t)
  into queues, tasks, any_queue, any_task, declared;
end $$;

-- Says that no live node serves a queue and task. The lists are those of served_names. p_tells_nearest:
-- name the most similar one, which takes milliseconds.
create or replace function hwqueue.unserved_words(p_queue text, p_task text, p_queues text[], p_tasks text[],
  p_any_queue boolean, p_tells_nearest boolean) returns text
language plpgsql immutable parallel safe
as $$ begin return (
  select case
    when w.is_unpolled then format('no live node polls queue %s', to_json(p_queue))
    when p_task = any (p_tasks) then
      format('no live node that polls queue %s has a handler for task %s', to_json(p_queue), to_json(p_task))
    else format('no live node has a handler for task %s', to_json(p_task)) end
    || case when p_tells_nearest and (w.is_unpolled or p_task <> all (p_tasks)) then coalesce(
         '; did you mean ' || regexp_replace(case when w.is_unpolled
           then hwqueue.nearest_name(p_queue, p_queues) else hwqueue.nearest_name(p_task, p_tasks) end,
           '[[:cntrl:]]+', ' ', 'g') || '?', '')
       else '' end
  from (select not p_any_queue and p_queue <> all (p_queues) as is_unpolled) w
); end $$;

-- Says of the labels, values and countables that are asked and that no live node has, at most 20 of each,
-- that none has it. is_known: it also says what is wrong: the name that the asker probably meant, or that the
-- label's values are of another type. Similar names are sought on 1,000 live nodes, of each profile one.
create or replace function hwqueue.unknown_names(p_exprs jsonb, p_custom jsonb, p_now timestamptz)
returns table (words text, is_known boolean)
language sql stable
as $$
  with recursive expr as (
    select e.value as expr from jsonb_array_elements(p_exprs) e
    union all
    select i.value from expr x
    cross join jsonb_array_elements(x.expr -> 'any') b
    cross join jsonb_array_elements(b.value) i
  ), asked as materialized (  -- wanted: the values of which one is asked; null: any, or what no list says
    select x.expr ->> 'label' as label, case x.expr ->> 'op' when 'in' then x.expr -> 'values' end as wanted
    from expr x where x.expr ? 'label' and x.expr ->> 'op' not in ('not_in', 'does_not_exist')
    union
    select x.expr ->> 'other_label', null from expr x where x.expr ? 'other_label'
    union
    select t.key, null from expr x cross join jsonb_object_keys(x.expr -> 'tags') t(key)
    limit 20
  ), live as materialized (
    select n.profile_id, n.labels, n.custom, n.gpu_ids <> '{}' as has_gpus
    from hwqueue.node n
    join hwqueue.node_state s on s.node_id = n.node_id
    where n.deregistered_at is null and hwqueue.is_live(n, s, p_now)
  ), missing as materialized (
    select a.label, a.wanted, exists (select from live l where l.labels ? a.label) as has_label
    from asked a
    where not exists (
      select from live l where l.labels ? a.label
        and (a.wanted is null or hwqueue.label_holds('in', l.labels -> a.label, a.wanted)))
  )
  select regexp_replace(format('no live node has %s%s', u.words, u.guess), '[[:cntrl:]]+', ' ', 'g'),
         u.guess is not null
  from (
    select left('label ' || m.label, 100), ', did you mean ' || hwqueue.nearest_name(m.label, array(
             select distinct k.key
             from (select distinct on (l.profile_id) l.labels from live l limit 1000) l
             cross join jsonb_object_keys(l.labels) k(key))) || '?'
    from missing m where not m.has_label
    union all
    select left(format('label %s=%s', m.label, hwqueue.list_words(m.wanted)), 200), coalesce((
      select format(': label %s is %s (%s)', left(m.label, 100), min(t.words),
        hwqueue.count_words(count(*), 'live node', 'live nodes'))
      from live l
      cross join lateral hwqueue.type_words(jsonb_build_object('op', 'in', 'values', m.wanted),
        l.labels -> m.label) t(words)
      where t.words is not null having count(*) > 0), (
      select ', did you mean ' || hwqueue.nearest_name(w.value #>> '{}', k.names) || '?'
      from (select array(
              select distinct l.labels ->> m.label from live l
              where jsonb_typeof(l.labels -> m.label) = 'string' limit 1000) as names) k
      cross join jsonb_array_elements(m.wanted) with ordinality w
      where w.ordinality <= 3 and hwqueue.nearest_name(w.value #>> '{}', k.names) is not null
      order by w.ordinality limit 1))
    from missing m where m.has_label
    union all
    select left('resource ' || r.name, 100),
           ', did you mean ' || hwqueue.nearest_name(r.name, k.names) || '?'
    from (select j.name from jsonb_object_keys(p_custom) j(name) limit 20) r
    cross join (select array(
      select u.name from live l cross join jsonb_object_keys(l.custom) u(name)
      union select 'gpu' from live l where l.has_gpus
      union values ('cpu_milli'), ('memory_mib')) as names) k
    where r.name <> all (k.names)) u(words, guess)
$$;

-- Says those unknown names of which it is known what is wrong, at most three, to be put after a sentence;
-- empty if there are none.
create or replace function hwqueue.similar_words(p_exprs jsonb, p_custom jsonb, p_now timestamptz)
returns text
language plpgsql stable
as $$ begin return (
  select coalesce(string_agg('; ' || u.words, '' order by u.words), '')
  from (select n.* from hwqueue.unknown_names(p_exprs, p_custom, p_now) n
        where n.is_known order by n.words limit 3) u
); end $$;
