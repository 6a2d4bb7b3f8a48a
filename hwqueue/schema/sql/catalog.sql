-- Everything in the schema that an upgrade makes: (kind, name, facts). The facts are the same on
-- every supported version of Postgres for the same schema, save `view_definition`. Run with search_path = pg_catalog, so
-- that every name outside it is written in full.
--
-- Grants: the owner's own are left out (each version has its own list of them). foreign_owner: whose it is, if not the schema's owner's.
with whole as (
  select n.nspowner as owner from pg_namespace n where n.nspname = 'hwqueue'
), acl as (
  select o.catalog, o.oid, coalesce(
      json_agg(g.grantee || ': ' || a.privilege_type order by g.grantee, a.privilege_type)
        filter (where a.grantee <> o.owner),
      '[]') as grants
  from (
    select p.tableoid as catalog, p.oid, p.proowner as owner, coalesce(p.proacl, acldefault('f', p.proowner)) as acl
    from pg_proc p
    where p.pronamespace = 'hwqueue'::regnamespace
    union all
    select c.tableoid, c.oid, c.relowner,
      coalesce(c.relacl, acldefault((case c.relkind when 'S' then 's' else 'r' end)::"char", c.relowner))
    from pg_class c
    where c.relnamespace = 'hwqueue'::regnamespace
    union all
    select n.tableoid, n.oid, n.nspowner, coalesce(n.nspacl, acldefault('n', n.nspowner))
    from pg_namespace n
    where n.nspname = 'hwqueue'
  ) o
  cross join lateral aclexplode(o.acl) a
  cross join lateral (
    select case when a.grantee = 0 then 'public' else pg_get_userbyid(a.grantee)::text end as grantee
  ) g
  group by o.catalog, o.oid  -- a function and a table may have one oid, as after pg_upgrade
)
select 'schema' as kind, n.nspname::text as name, json_build_object('grants', a.grants) as facts
from pg_namespace n
join acl a on a.catalog = n.tableoid and a.oid = n.oid
where n.nspname = 'hwqueue'
union all
select 'function', p.proname || '(' || oidvectortypes(p.proargtypes) || ')', json_build_object(
    'arguments', pg_get_function_arguments(p.oid),
    'result', pg_get_function_result(p.oid),
    'language', l.lanname,
    'body_md5', md5(p.prosrc),
    'volatility', p.provolatile,
    'parallel', p.proparallel,
    'strict', p.proisstrict,
    'security_definer', p.prosecdef,
    'settings', p.proconfig,
    'foreign_owner', case when p.proowner <> w.owner then pg_get_userbyid(p.proowner) end,
    'grants', a.grants)
from pg_proc p
cross join whole w
join pg_language l on l.oid = p.prolang
join acl a on a.catalog = p.tableoid and a.oid = p.oid
where p.pronamespace = 'hwqueue'::regnamespace
union all
select case c.relkind when 'v' then 'view' else 'table' end, c.relname, json_build_object(
    'relkind', c.relkind,
    'persistence', c.relpersistence,
    'options', c.reloptions,
    'partition', pg_get_expr(c.relpartbound, c.oid),
    'row_security', c.relrowsecurity,
    'view_definition', case when c.relkind = 'v' then pg_get_viewdef(c.oid) end,
    'foreign_owner', case when c.relowner <> w.owner then pg_get_userbyid(c.relowner) end,
    'grants', a.grants)
from pg_class c
cross join whole w
join acl a on a.catalog = c.tableoid and a.oid = c.oid
where c.relnamespace = 'hwqueue'::regnamespace and c.relkind in ('r', 'p', 'v', 'm', 'f', 'S')
union all
select 'column', c.relname || '.' || t.attname, json_build_object(
    'type', format_type(t.atttypid, t.atttypmod),
    'position', row_number() over (partition by c.oid order by t.attnum),
    'not_null', t.attnotnull,
    'default', pg_get_expr(d.adbin, d.adrelid),
    'generated', t.attgenerated,
    'identity', t.attidentity,
    'collation', nullif(t.attcollation, 0)::regcollation::text)
from pg_class c
join pg_attribute t on t.attrelid = c.oid and t.attnum > 0 and not t.attisdropped
left join pg_attrdef d on d.adrelid = c.oid and d.adnum = t.attnum
where c.relnamespace = 'hwqueue'::regnamespace and c.relkind in ('r', 'p', 'v', 'm', 'f', 'c')
union all
-- not null is a fact of the column; only Postgres 18 lists it here, too
select 'constraint', c.relname || '.' || k.conname, json_build_object(
    'definition', pg_get_constraintdef(k.oid),
    'validated', k.convalidated)
from pg_constraint k
join pg_class c on c.oid = k.conrelid
where k.connamespace = 'hwqueue'::regnamespace and k.contype <> 'n'
union all
select 'index', c.relname, json_build_object(
    'definition', pg_get_indexdef(c.oid),
    'valid', i.indisvalid)
from pg_class c
join pg_index i on i.indexrelid = c.oid
where c.relnamespace = 'hwqueue'::regnamespace
union all
select 'trigger', c.relname || '.' || g.tgname, json_build_object(
    'definition', pg_get_triggerdef(g.oid),
    'enabled', g.tgenabled)
from pg_trigger g
join pg_class c on c.oid = g.tgrelid
where c.relnamespace = 'hwqueue'::regnamespace and not g.tgisinternal
union all
select 'policy', c.relname || '.' || y.polname, json_build_object(
    'command', y.polcmd,
    'using', pg_get_expr(y.polqual, y.polrelid),
    'check', pg_get_expr(y.polwithcheck, y.polrelid))
from pg_policy y
join pg_class c on c.oid = y.polrelid
where c.relnamespace = 'hwqueue'::regnamespace
union all
select 'type', t.typname, json_build_object(
    'kind', t.typtype,
    'base', case when t.typtype = 'd' then format_type(t.typbasetype, t.typtypmod) end,
    'labels', (
      select json_agg(e.enumlabel order by e.enumsortorder) from pg_enum e where e.enumtypid = t.oid
    ))
from pg_type t
left join pg_class c on c.oid = t.typrelid
where t.typnamespace = 'hwqueue'::regnamespace and (t.typtype in ('d', 'e') or c.relkind = 'c')
order by 1, 2
