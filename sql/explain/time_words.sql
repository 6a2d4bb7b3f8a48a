-- Spans and counts in words for people.

-- So many of something.
create or replace function hwqueue.count_words(p_count bigint, p_one text, p_many text) returns text
language sql immutable parallel safe
as $$ select p_count || ' ' || case p_count when 1 then p_one else p_many end $$;

-- A span, in its two largest units: "1.4 s", "3 min", "2 h 05 min", "4 d 3 h".
create or replace function hwqueue.span_words(p_span interval) returns text
language sql immutable parallel safe
as $$
  select case
    when s.secs < 60 then trim_scale(round(s.secs, 1)) || ' s'
    when s.secs < 3600 then floor(s.secs / 60) || ' min'
    when s.secs < 86400 then floor(s.secs / 3600) || ' h ' || to_char(floor(s.secs % 3600 / 60), 'FM00') || ' min'
    else floor(s.secs / 86400) || ' d ' || floor(s.secs % 86400 / 3600) || ' h' end
  from (select greatest(extract(epoch from p_span), 0) as secs) s
$$;
