/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Storing a chunk in a bank. No locks, no memory of its own and no kernel:
 * compiled in user space too, by the tests.
 */
#ifndef LEAP_BANK_H
#define LEAP_BANK_H

#include "leap_wire.h"

/**
 * enum leap_verdict - what becomes of a chunk
 * @LEAP_STORE: it belongs into its slot
 * @LEAP_DUPLICATE: it is there
 * @LEAP_OLD: its frame is over
 * @LEAP_AHEAD: its bank still holds an older frame, or the frame is too new
 * @LEAP_CONFLICT: it disagrees with the frame's first chunk about the size
 * @LEAP_FOREIGN: it is of another session
 */
enum leap_verdict {
	LEAP_STORE,
	LEAP_DUPLICATE,
	LEAP_OLD,
	LEAP_AHEAD,
	LEAP_CONFLICT,
	LEAP_FOREIGN,
};

/**
 * struct leap_bank - state of a bank
 * @session: whose frames it takes; 0 = none
 * @bitmap: chunks that are there
 * @state: LEAP_BANK_*
 * @seq: the frame it holds or waits for
 * @frame_bytes: of the frame, unless the bank is free
 * @n_chunks: of the frame, unless the bank is free
 */
struct leap_bank {
	__u64 session;
	__u64 bitmap[2];
	__u32 state;
	__u32 seq;
	__u32 frame_bytes;
	__u32 n_chunks;
};

void leap_bank_reset(struct leap_bank *bank, __u32 index, __u64 session,
		     __u32 first_seq);
bool leap_bank_sync(struct leap_bank *bank, __u32 shared_state);
enum leap_verdict leap_bank_offer(struct leap_bank *bank,
				  const struct leap_chunk *chunk);
bool leap_bank_stored(struct leap_bank *bank, __u32 chunk);
bool leap_bank_reject(struct leap_bank *bank, __u32 seq, const __u64 bitmap[2]);

/**
 * leap_seq_before() - order of two sequence numbers that wrap around
 * @a: one number
 * @b: another, less than 2^31 away
 *
 * Return: whether @a comes before @b.
 */
static inline bool leap_seq_before(__u32 a, __u32 b)
{
	return (__s32)(a - b) < 0;
}

#endif
