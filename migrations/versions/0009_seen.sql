-- What has been seen to end.
select 1;
