// SPDX-License-Identifier: GPL-2.0
/*
 * Which datagrams are ours, and what a bank does with a chunk.
 *
 * A bank takes one frame only, the one whose number it waits for, so nothing
 * that is forged, late or repeated can push out what is being received.
 */
#ifndef __KERNEL__
#include <stdbool.h>
#endif
#include "leap_bank.h"

/**
 * leap_is_data() - whether a datagram is for the banks, if its session is
 * @header: its first LEAP_HEADER_BYTES
 *
 * Return: false for what user space shall have: other kinds, other versions.
 */
bool leap_is_data(const struct leap_datagram *header)
{
	return le32_to_cpu(header->magic) == LEAP_MAGIC &&
	       header->version == LEAP_WIRE_VERSION &&
	       header->kind == LEAP_KIND_DATA;
}

/**
 * leap_chunk_parse() - reads a header and believes only what agrees
 * @header: the header
 * @bytes: length of what followed it
 * @chunk: its meaning
 *
 * Return: whether @chunk was filled in.
 */
bool leap_chunk_parse(const struct leap_datagram *header, __u32 bytes,
		      struct leap_chunk *chunk)
{
	chunk->session = le64_to_cpu(header->session);
	chunk->seq = le32_to_cpu(header->seq);
	chunk->frame_bytes = le32_to_cpu(header->frame_bytes);
	chunk->crc = le32_to_cpu(header->crc);
	chunk->n_chunks = le16_to_cpu(header->n_chunks);
	chunk->chunk = le16_to_cpu(header->chunk);
	chunk->bytes = le16_to_cpu(header->payload_bytes);
	return leap_is_data(header) &&
	       leap_frame_fits(chunk->n_chunks, chunk->frame_bytes) &&
	       chunk->chunk < chunk->n_chunks &&
	       chunk->bytes == bytes &&
	       chunk->bytes == leap_chunk_bytes(chunk->n_chunks,
						chunk->frame_bytes,
						chunk->chunk);
}

static void leap_bank_await(struct leap_bank *bank, __u32 seq)
{
	bank->state = LEAP_BANK_FREE;
	bank->seq = seq;
	bank->bitmap[0] = 0;
	bank->bitmap[1] = 0;
}

/**
 * leap_bank_reset() - frees a bank for a new session
 * @bank: the bank
 * @index: its place
 * @session: the session, or 0 for none
 * @first_seq: the session's first frame
 */
void leap_bank_reset(struct leap_bank *bank, __u32 index, __u64 session,
		     __u32 first_seq)
{
	bank->session = session;
	leap_bank_await(bank, first_seq + (index - first_seq) % LEAP_BANKS);
}

/**
 * leap_bank_sync() - hears what user space says of a bank it has
 * @bank: the bank
 * @shared_state: the state in the mapping, which may be anything
 *
 * Return: whether the bank was given back: it is free now.
 */
bool leap_bank_sync(struct leap_bank *bank, __u32 shared_state)
{
	if (bank->state != LEAP_BANK_READY && bank->state != LEAP_BANK_HELD)
		return false;
	if (shared_state == LEAP_BANK_HELD)
		bank->state = LEAP_BANK_HELD;
	if (shared_state != LEAP_BANK_FREE)
		return false;
	leap_bank_await(bank, bank->seq + LEAP_BANKS);
	return true;
}

static bool leap_bank_has(const struct leap_bank *bank, __u32 chunk)
{
	return bank->bitmap[chunk / 64] >> chunk % 64 & 1;
}

/**
 * leap_bank_offer() - judges a chunk; the bank is now filling if it was free
 * @bank: the chunk's bank
 * @chunk: the chunk
 *
 * Return: LEAP_STORE if the caller shall copy it into its slot and say so by
 * leap_bank_stored().
 */
enum leap_verdict leap_bank_offer(struct leap_bank *bank,
				  const struct leap_chunk *chunk)
{
	if (!bank->session || chunk->session != bank->session)
		return LEAP_FOREIGN;
	if (chunk->seq != bank->seq)
		return leap_seq_before(chunk->seq, bank->seq) ? LEAP_OLD :
								LEAP_AHEAD;
	switch (bank->state) {
	case LEAP_BANK_FREE:
		bank->state = LEAP_BANK_FILLING;
		bank->n_chunks = chunk->n_chunks;
		bank->frame_bytes = chunk->frame_bytes;
		return LEAP_STORE;
	case LEAP_BANK_FILLING:
		if (chunk->n_chunks != bank->n_chunks ||
		    chunk->frame_bytes != bank->frame_bytes)
			return LEAP_CONFLICT;
		if (leap_bank_has(bank, chunk->chunk))
			return LEAP_DUPLICATE;
		return LEAP_STORE;
	default:
		return LEAP_DUPLICATE;
	}
}

static bool leap_bank_is_full(const struct leap_bank *bank)
{
	__u32 n = bank->n_chunks;
	__u64 low = n >= 64 ? ~0ULL : (1ULL << n) - 1;
	__u64 high = n > 64 ? (1ULL << (n - 64)) - 1 : 0;

	return bank->bitmap[0] == low && bank->bitmap[1] == high;
}

/**
 * leap_bank_stored() - notes that a chunk lies in its slot
 * @bank: the bank, filling
 * @chunk: index of the chunk
 *
 * Return: whether the frame is complete; the bank is then ready.
 */
bool leap_bank_stored(struct leap_bank *bank, __u32 chunk)
{
	bank->bitmap[chunk / 64] |= 1ULL << chunk % 64;
	if (!leap_bank_is_full(bank))
		return false;
	bank->state = LEAP_BANK_READY;
	return true;
}

/**
 * leap_bank_reject() - forgets chunks that the reader found to be bad
 * @bank: the bank
 * @seq: the frame the reader means
 * @bitmap: the bad chunks
 *
 * Return: whether the bank holds something of that frame.
 */
bool leap_bank_reject(struct leap_bank *bank, __u32 seq, const __u64 bitmap[2])
{
	if (bank->state == LEAP_BANK_FREE || bank->seq != seq)
		return false;
	bank->bitmap[0] &= ~bitmap[0];
	bank->bitmap[1] &= ~bitmap[1];
	if (!bank->bitmap[0] && !bank->bitmap[1])
		bank->state = LEAP_BANK_FREE;
	else if (!leap_bank_is_full(bank))
		bank->state = LEAP_BANK_FILLING;
	return true;
}
