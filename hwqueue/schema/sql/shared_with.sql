-- Other databases of this server in which the queue's roles own or are granted something, if everybody may connect to them or
-- to this one: a login that is granted a role for one of them has it in all.
select d.datname::text
from (
  select distinct s.dbid
  from pg_catalog.pg_shdepend s
  join pg_catalog.pg_roles r on r.oid = s.refobjid and r.rolname = any ({roles}::name[])
  where s.refclassid = 'pg_catalog.pg_authid'::pg_catalog.regclass
) s
join pg_catalog.pg_database d on d.oid = s.dbid and d.datname <> pg_catalog.current_database()
where pg_catalog.has_database_privilege('public', d.oid, 'CONNECT')
order by 1
