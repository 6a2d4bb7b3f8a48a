drop function if exists hwqueue.letter_pairs(text);
