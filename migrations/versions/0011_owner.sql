-- An owner that is no superuser; who did what.
select 1;
