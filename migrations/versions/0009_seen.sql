-- What a profile and a node have seen of the classes: the transactions that ran when they last judged, instead of a horizon that the oldest
-- transaction of the whole server holds back, and a list of the classes judged beyond it.
drop function if exists hwqueue.unseen_classes(xid8, bigint[], text[], boolean, int);
drop function if exists hwqueue.next_mark(bigint[], xid8, int);
drop function if exists hwqueue.judged_beyond(bigint[], xid8, int);
drop function if exists hwqueue.judge_for_profile(hwqueue.profile, xid8, int);
drop function if exists hwqueue.judge_pinned(hwqueue.node, hwqueue.node_state, xid8, int);
drop function if exists hwqueue.read_queue_head(text, bigint, xid8, timestamptz, int);
drop function if exists hwqueue.take_front(bigint, xid8, int, text[], int, bigint, bigint, bigint[], hwqueue.headroom, int, timestamptz, int);

alter table hwqueue.profile
  drop column classes_judged,
  add column classes_unseen xid8[] not null default '{}',
  add column judged_xid xid8,
  add column judged_class bigint,
  add check ((judged_xid is null) = (judged_class is null));
comment on column hwqueue.profile.classes_seen is
  'classes of transactions below this one have been judged, but for those of classes_unseen; next_xid of what the last judge has seen';
comment on column hwqueue.profile.classes_unseen is 'transactions that ran when classes were last judged';
comment on column hwqueue.profile.judged_xid is 'of the classes of this transaction, those up to judged_class have been judged, too';

alter table hwqueue.profile_queue add column classes_unseen xid8[] not null default '{}';
comment on column hwqueue.profile_queue.classes_unseen is 'that of the profile';

alter table hwqueue.node_state
  drop column classes_judged,
  add column classes_unseen xid8[] not null default '{}',
  add column judged_xid xid8,
  add column judged_class bigint,
  add check ((judged_xid is null) = (judged_class is null));
comment on column hwqueue.node_state.classes_seen is 'as of a profile, for classes that are judged per node; likewise classes_unseen, judged_xid';

-- How far a caller has come in the classes.
create type hwqueue.judging_progress as (next_xid xid8, unseen xid8[], xid xid8, class_id bigint);

drop index hwqueue.placement_class_created;
create index placement_class_created on hwqueue.placement_class (shard_id, created_xid, class_id);

-- Where judging ahead of claims goes on.
alter table hwqueue.reap_cursor add column judged_profile bigint not null default 0;
comment on column hwqueue.reap_cursor.judged_profile is 'the last profile that was looked at for classes to judge';

-- Nodes that differ only in labels with very many values, which no class mentions, are judged as one.
alter table hwqueue.profile
  add column judged_as bigint,
  add column left_out text[] not null default '{}';
comment on column hwqueue.profile.judged_as is 'the profile that is judged for this one: the same without some labels; null: itself';
comment on column hwqueue.profile.left_out is 'labels that nodes of the profiles which are judged as this one have besides; no class that mentions one suits it';
create index profile_judged_as on hwqueue.profile (shard_id, judged_as) where judged_as is not null;

-- Labels that have very many values.
create table hwqueue.ignored_label (
  shard_id int not null,
  key text not null,
  is_mentioned boolean not null,
  unseen xid8[] not null,
  next_xid xid8 not null,
  primary key (shard_id, key)
);
comment on column hwqueue.ignored_label.is_mentioned is 'some class mentions it: it is left out no more';
comment on column hwqueue.ignored_label.next_xid is 'with unseen: what was seen of the classes when they were last asked';
