// SPDX-License-Identifier: GPL-2.0
/*
 * Tests of leap_bank.c in user space, and a fuzz target: a stream of hostile
 * datagrams and of things user space may do is played against a bank and
 * against a plain model of it.
 *
 * Built with -DLEAP_FUZZER this is a libFuzzer target, otherwise a program that
 * runs the tests and then seeded random streams.
 */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../leap_bank.h"

#define check(condition)						     \
	do {								     \
		if (!(condition)) {					     \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__,   \
				#condition);				     \
			abort();					     \
		}							     \
	} while (0)

#define SESSION 0x1122334455667788ULL

static struct leap_datagram datagram(uint32_t seq, uint32_t n_chunks,
				     uint32_t frame_bytes, uint32_t chunk)
{
	struct leap_datagram header = {
		.magic = cpu_to_le32(LEAP_MAGIC),
		.version = LEAP_WIRE_VERSION,
		.kind = LEAP_KIND_DATA,
		.chunk = cpu_to_le16(chunk),
		.session = cpu_to_le64(SESSION),
		.seq = cpu_to_le32(seq),
		.n_chunks = cpu_to_le16(n_chunks),
		.payload_bytes = cpu_to_le16(leap_chunk_bytes(n_chunks, frame_bytes, chunk)),
		.frame_bytes = cpu_to_le32(frame_bytes),
	};

	return header;
}

static struct leap_chunk chunk_of(uint32_t seq, uint32_t n_chunks,
				  uint32_t frame_bytes, uint32_t chunk)
{
	struct leap_datagram header = datagram(seq, n_chunks, frame_bytes, chunk);
	struct leap_chunk out;

	check(leap_chunk_parse(&header, le16_to_cpu(header.payload_bytes), &out));
	return out;
}

static void one_datagram_is_pinned_as_bytes(void)
{
	static const uint8_t bytes[LEAP_HEADER_BYTES] = {
		'L', 'E', 'P', '1', 1, 0, 2, 0, 0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11,
		5, 0, 0, 0, 3, 0, 100, 0, 0x54, 0x0b, 0, 0, 0xef, 0xbe, 0xad, 0xde,
	};
	struct leap_datagram header;
	struct leap_chunk chunk;

	check(sizeof(header) == LEAP_HEADER_BYTES);
	memcpy(&header, bytes, sizeof(header));
	check(leap_chunk_parse(&header, 100, &chunk));
	check(chunk.session == SESSION && chunk.seq == 5);
	check(chunk.n_chunks == 3 && chunk.chunk == 2 && chunk.bytes == 100);
	check(chunk.frame_bytes == 2900 && chunk.crc == 0xdeadbeef);
}

static void headers_whose_numbers_disagree_are_refused(void)
{
	struct leap_datagram good = datagram(1, 3, 2 * LEAP_SLOT_BYTES + 7, 1), bad;
	struct leap_chunk out;

	check(leap_chunk_parse(&good, LEAP_SLOT_BYTES, &out));
	check(!leap_chunk_parse(&good, LEAP_SLOT_BYTES - 1, &out));
	check(!leap_chunk_parse(&good, LEAP_SLOT_BYTES + 1, &out));
#define REFUSED(field, value)						     \
	do {								     \
		bad = good;						     \
		bad.field = (value);					     \
		check(!leap_chunk_parse(&bad, LEAP_SLOT_BYTES, &out));	     \
	} while (0)
	REFUSED(magic, 0);
	REFUSED(version, 2);
	REFUSED(kind, 1);
	REFUSED(chunk, cpu_to_le16(2));
	REFUSED(chunk, cpu_to_le16(3));
	REFUSED(chunk, cpu_to_le16(0xffff));
	REFUSED(n_chunks, 0);
	REFUSED(n_chunks, cpu_to_le16(2));
	REFUSED(n_chunks, cpu_to_le16(4));
	REFUSED(n_chunks, cpu_to_le16(LEAP_MAX_CHUNKS + 1));
	REFUSED(n_chunks, 0xffff);
	REFUSED(payload_bytes, 0);
	REFUSED(payload_bytes, 0xffff);
	REFUSED(frame_bytes, 0);
	REFUSED(frame_bytes, cpu_to_le32(2 * LEAP_SLOT_BYTES));
	REFUSED(frame_bytes, cpu_to_le32(3 * LEAP_SLOT_BYTES + 1));
	REFUSED(frame_bytes, 0xffffffff);
#undef REFUSED
}

static void a_bank_waits_for_its_own_frames_only(void)
{
	struct leap_bank bank;
	struct leap_chunk chunk;
	uint32_t i, first = 0xffffffe0;

	for (i = 0; i < LEAP_BANKS; i++) {
		leap_bank_reset(&bank, i, SESSION, first);
		check(bank.state == LEAP_BANK_FREE && bank.seq % LEAP_BANKS == i);
		check(bank.seq - first < LEAP_BANKS);
	}
	leap_bank_reset(&bank, first % LEAP_BANKS, SESSION, first);
	chunk = chunk_of(first - LEAP_BANKS, 1, 1, 0);
	check(leap_bank_offer(&bank, &chunk) == LEAP_OLD);
	chunk = chunk_of(first + LEAP_BANKS, 1, 1, 0);
	check(leap_bank_offer(&bank, &chunk) == LEAP_AHEAD);
	chunk = chunk_of(first, 1, 1, 0);
	chunk.session++;
	check(leap_bank_offer(&bank, &chunk) == LEAP_FOREIGN);
	check(bank.state == LEAP_BANK_FREE);
	leap_bank_reset(&bank, 0, 0, 0);
	chunk = chunk_of(0, 1, 1, 0);
	chunk.session = 0;
	check(leap_bank_offer(&bank, &chunk) == LEAP_FOREIGN);
}

static void fill(struct leap_bank *bank, uint32_t seq, uint32_t n_chunks)
{
	uint32_t i;

	for (i = n_chunks; i-- > 0;) {
		struct leap_chunk chunk = chunk_of(seq, n_chunks, n_chunks * LEAP_SLOT_BYTES, i);

		check(leap_bank_offer(bank, &chunk) == LEAP_STORE);
		check(leap_bank_stored(bank, i) == (i == 0));
		if (i)
			check(leap_bank_offer(bank, &chunk) == LEAP_DUPLICATE);
	}
}

static void a_frame_of_any_length_fills_and_is_given_back(void)
{
	struct leap_bank bank;
	struct leap_chunk again, next;
	uint32_t n, seq = 0xffffffc0 + 5;

	leap_bank_reset(&bank, 5, SESSION, seq);
	for (n = 1; n <= LEAP_MAX_CHUNKS; n++, seq += LEAP_BANKS) {
		again = chunk_of(seq, n, n * LEAP_SLOT_BYTES, 0);
		next = chunk_of(seq + LEAP_BANKS, 1, 1, 0);
		check(!leap_bank_sync(&bank, LEAP_BANK_HELD) && bank.state == LEAP_BANK_FREE);
		fill(&bank, seq, n);
		check(bank.state == LEAP_BANK_READY);
		check(leap_bank_offer(&bank, &again) == LEAP_DUPLICATE);
		check(leap_bank_offer(&bank, &next) == LEAP_AHEAD);
		check(!leap_bank_sync(&bank, LEAP_BANK_READY) && bank.state == LEAP_BANK_READY);
		check(!leap_bank_sync(&bank, 77) && bank.state == LEAP_BANK_READY);
		check(!leap_bank_sync(&bank, LEAP_BANK_HELD) && bank.state == LEAP_BANK_HELD);
		check(leap_bank_offer(&bank, &next) == LEAP_AHEAD);
		check(leap_bank_sync(&bank, LEAP_BANK_FREE));
		check(bank.state == LEAP_BANK_FREE && bank.seq == seq + LEAP_BANKS);
		check(leap_bank_offer(&bank, &again) == LEAP_OLD);
	}
}

static void chunks_that_disagree_about_the_size_are_conflicts(void)
{
	struct leap_bank bank;
	struct leap_chunk chunk;

	leap_bank_reset(&bank, 0, SESSION, 0);
	chunk = chunk_of(0, 3, 2 * LEAP_SLOT_BYTES + 1, 0);
	check(leap_bank_offer(&bank, &chunk) == LEAP_STORE);
	check(!leap_bank_stored(&bank, 0));
	chunk = chunk_of(0, 4, 3 * LEAP_SLOT_BYTES + 1, 1);
	check(leap_bank_offer(&bank, &chunk) == LEAP_CONFLICT);
	chunk = chunk_of(0, 3, 2 * LEAP_SLOT_BYTES + 2, 1);
	check(leap_bank_offer(&bank, &chunk) == LEAP_CONFLICT);
}

static void rejected_chunks_are_taken_again(void)
{
	const __u64 some[2] = { 1ULL << 3, 1ULL << 2 }, all[2] = { ~0ULL, ~0ULL };
	struct leap_chunk chunk = chunk_of(0, 70, 70 * LEAP_SLOT_BYTES, 66);
	struct leap_bank bank;

	leap_bank_reset(&bank, 0, SESSION, 0);
	check(!leap_bank_reject(&bank, 0, all));
	fill(&bank, 0, 70);
	check(!leap_bank_reject(&bank, LEAP_BANKS, some) && bank.state == LEAP_BANK_READY);
	check(leap_bank_reject(&bank, 0, some) && bank.state == LEAP_BANK_FILLING);
	check(leap_bank_offer(&bank, &chunk) == LEAP_STORE && !leap_bank_stored(&bank, 66));
	chunk = chunk_of(0, 70, 70 * LEAP_SLOT_BYTES, 3);
	check(leap_bank_offer(&bank, &chunk) == LEAP_STORE && leap_bank_stored(&bank, 3));
	check(bank.state == LEAP_BANK_READY);
	/* Rejected as a whole, the bank takes the same frame in another size. */
	check(leap_bank_reject(&bank, 0, all) && bank.state == LEAP_BANK_FREE && bank.seq == 0);
	fill(&bank, 0, 2);
}

/* The expected state of the bank, in plain form. */
struct model {
	bool has[LEAP_MAX_CHUNKS];
	uint32_t n_chunks, frame_bytes, seq, state;
};

static void model_await(struct model *model, uint32_t seq)
{
	memset(model, 0, sizeof(*model));
	model->seq = seq;
}

static uint32_t model_count(const struct model *model)
{
	uint32_t i, n = 0;

	for (i = 0; i < LEAP_MAX_CHUNKS; i++)
		n += model->has[i];
	return n;
}

static void model_store(struct model *model, const struct leap_chunk *chunk)
{
	if (model->state == LEAP_BANK_FREE) {
		model->n_chunks = chunk->n_chunks;
		model->frame_bytes = chunk->frame_bytes;
		model->state = LEAP_BANK_FILLING;
	}
	check(model->state == LEAP_BANK_FILLING && !model->has[chunk->chunk]);
	check(model->n_chunks == chunk->n_chunks && model->frame_bytes == chunk->frame_bytes);
	model->has[chunk->chunk] = true;
	if (model_count(model) == model->n_chunks)
		model->state = LEAP_BANK_READY;
}

static void model_reject(struct model *model, const __u64 bitmap[2])
{
	uint32_t i;

	for (i = 0; i < LEAP_MAX_CHUNKS; i++)
		model->has[i] = model->has[i] && !(bitmap[i / 64] >> i % 64 & 1);
	if (!model_count(model))
		model_await(model, model->seq);
	else if (model_count(model) < model->n_chunks)
		model->state = LEAP_BANK_FILLING;
}

static void model_compare(const struct model *model, const struct leap_bank *bank)
{
	uint32_t i;

	check(bank->state == model->state && bank->seq == model->seq);
	for (i = 0; i < LEAP_MAX_CHUNKS; i++)
		check((bank->bitmap[i / 64] >> i % 64 & 1) == model->has[i]);
	check(bank->bitmap[1] >> (LEAP_MAX_CHUNKS - 64) == 0);
}

struct input {
	const uint8_t *at;
	size_t left;
};

static uint32_t draw(struct input *input)
{
	uint32_t value = 0;
	size_t n = input->left < sizeof(value) ? input->left : sizeof(value);

	memcpy(&value, input->at, n);
	input->at += n;
	input->left -= n;
	return value;
}

/* A datagram: one in four raw, the others sound but for one field. */
static void draw_datagram(struct input *input, const struct leap_bank *bank,
			  struct leap_datagram *header, uint32_t *bytes)
{
	uint32_t kind = draw(input), i, n = 1 + draw(input) % 5;
	uint32_t delta = kind >> 8 & 3;

	*header = datagram(bank->seq + (delta == 3 ? draw(input) % 3 * LEAP_BANKS - LEAP_BANKS : 0),
			   n, n * LEAP_SLOT_BYTES - draw(input) % 2, draw(input) % n);
	*bytes = le16_to_cpu(header->payload_bytes);
	if (kind % 4 == 0) {
		for (i = 0; i < sizeof(*header); i += 4) {
			uint32_t word = draw(input);

			memcpy((uint8_t *)header + i, &word, 4);
		}
		*bytes = draw(input) % 2000;
	} else if (kind % 4 == 1) {
		((uint8_t *)header)[kind >> 16 & 31] ^= draw(input);
	}
}

static void step(struct input *input, struct leap_bank *bank, struct model *model, uint8_t *slots)
{
	struct leap_datagram header;
	struct leap_chunk chunk;
	__u64 bitmap[2];
	uint32_t bytes, shared;

	switch (draw(input) % 16) {
	case 0:
		shared = draw(input) % 5;
		if ((model->state == LEAP_BANK_READY || model->state == LEAP_BANK_HELD)) {
			if (shared == LEAP_BANK_HELD)
				model->state = LEAP_BANK_HELD;
			if (shared == LEAP_BANK_FREE)
				model_await(model, model->seq + LEAP_BANKS);
		}
		leap_bank_sync(bank, shared);
		break;
	case 1:
		bitmap[0] = draw(input);
		bitmap[1] = draw(input) % 2 ? ~0ULL : 0;
		if (leap_bank_reject(bank, bank->seq, bitmap))
			model_reject(model, bitmap);
		break;
	default:
		draw_datagram(input, bank, &header, &bytes);
		if (!leap_chunk_parse(&header, bytes, &chunk))
			break;
		if (leap_bank_offer(bank, &chunk) == LEAP_STORE) {
			check(chunk.session == SESSION && chunk.seq == model->seq);
			/* The sanitizer sees a byte outside the slots. */
			memset(slots + chunk.chunk * LEAP_SLOT_BYTES, 1, chunk.bytes);
			model_store(model, &chunk);
			check(leap_bank_stored(bank, chunk.chunk) == (model->state == LEAP_BANK_READY));
		}
	}
	model_compare(model, bank);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n);

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t n)
{
	struct input input = { bytes, n };
	uint8_t *slots = malloc(LEAP_FRAME_MAX);
	uint32_t index = draw(&input) % LEAP_BANKS;
	struct leap_bank bank;
	struct model model;

	check(slots);
	leap_bank_reset(&bank, index, SESSION, draw(&input));
	model_await(&model, bank.seq);
	while (input.left)
		step(&input, &bank, &model, slots);
	free(slots);
	return 0;
}

#ifndef LEAP_FUZZER

static uint64_t random_state = 0x9e3779b97f4a7c15ULL;

static uint8_t random_byte(void)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return random_state >> 32;
}

static void random_streams_match_the_model(void)
{
	static uint8_t bytes[4096];
	int run;
	size_t i;

	for (run = 0; run < 3000; run++) {
		for (i = 0; i < sizeof(bytes); i++)
			bytes[i] = random_byte();
		LLVMFuzzerTestOneInput(bytes, sizeof(bytes));
	}
}

int main(void)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} tests[] = {
#define TEST(name) { #name, name }
		TEST(one_datagram_is_pinned_as_bytes),
		TEST(headers_whose_numbers_disagree_are_refused),
		TEST(a_bank_waits_for_its_own_frames_only),
		TEST(a_frame_of_any_length_fills_and_is_given_back),
		TEST(chunks_that_disagree_about_the_size_are_conflicts),
		TEST(rejected_chunks_are_taken_again),
		TEST(random_streams_match_the_model),
	};
	size_t i, n = sizeof(tests) / sizeof(tests[0]);

	for (i = 0; i < n; i++) {
		tests[i].run();
		printf("test %s ... ok\n", tests[i].name);
	}
	printf("test result: ok. %zu passed; 0 failed;\n", n);
	return 0;
}
#endif
