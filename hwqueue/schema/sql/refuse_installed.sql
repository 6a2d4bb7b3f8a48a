-- The script of `hwqueue db sql` makes tables from nothing; over existing ones it would fail halfway.
do $$
begin
  if to_regclass('hwqueue.schema_info') is not null then
    raise exception 'hwqueue is installed in this database already'
      using errcode = 'duplicate_object',
            hint = 'this script is for a fresh install; to upgrade, run: hwqueue db upgrade';
  end if;
end
$$;
