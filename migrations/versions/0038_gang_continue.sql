-- == Gangs whose members go on without those that are lost ==

comment on column hwqueue.gang.on_lost is
  'what happens when a member that was running does not complete: stop (the others start again with it),'
  ' replace (the others go on, and it is placed again) or continue (it has failed, and the others go on)';
