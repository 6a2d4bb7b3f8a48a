-- What pgflow finds in a Supabase database and needs here: broadcasts, which nobody hears.

create schema realtime;

create function realtime.send(payload jsonb, event text, topic text, private boolean default true)
returns void language plpgsql as $$ begin end $$;

create schema if not exists pgmq;
