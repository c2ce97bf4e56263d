// SPDX-License-Identifier: GPL-2.0
/*
 * Random numbers, and arguments of ioctls made of them: some that may go well, some that are wrong by a
 * little, some that are noise.
 */
#include <netinet/in.h>
#include <string.h>
#include <sys/ioctl.h>
#include "fuzz.h"

uint64_t next(struct fuzzer *f)
{
	f->random ^= f->random << 13;
	f->random ^= f->random >> 7;
	f->random ^= f->random << 17;
	return f->random * 0x2545f4914f6cdd1dULL;
}

uint32_t below(struct fuzzer *f, uint32_t n)
{
	return (next(f) >> 32) * n >> 32;
}

bool chance(struct fuzzer *f, uint32_t one_in)
{
	return below(f, one_in) == 0;
}

uint64_t border(struct fuzzer *f)
{
	static const uint64_t borders[] = {
		0, 1, 2, LEAP_BANKS, LEAP_MAX_CHUNKS, LEAP_SLOT_BYTES, LEAP_META_BYTES, LEAP_BANK_BYTES,
		LEAP_FRAME_MAX, LEAP_RX_BYTES, LEAP_MAP_BYTES, 0x7fff, 0xffff, 0x7fffffff, 0xffffffff,
		0x7fffffffffffffff, 0xffffffffffffffff, PAGE,
	};
	uint64_t number = borders[below(f, sizeof(borders) / sizeof(borders[0]))];

	return chance(f, 8) ? next(f) : number + below(f, 3) - 1;
}

static uint32_t small_or_border(struct fuzzer *f, uint32_t n)
{
	return chance(f, 10) ? border(f) : below(f, n);
}

/* Every other time the neighbour that a file was set up with. */
static struct leap_endpoint random_endpoint(struct fuzzer *f, uint32_t file)
{
	static const char *const addresses[] = {
		"127.0.0.1", "0.0.0.0", "0.0.0.0", "127.0.0.2", "10.77.0.1", "255.255.255.255", "224.0.0.1", "127.255.255.255", "240.0.0.1", "::1", "::1", "::",
		"fe80::1", "ff02::1", "fd00::77", "::ffff:127.0.0.1", "2001:db8::1",
	};
	struct leap_endpoint out = endpoint("127.0.0.1", HERE + (file ^ 1));

	if (chance(f, 2))
		return out;
	out = endpoint(addresses[below(f, sizeof(addresses) / sizeof(addresses[0]))],
		       HERE + below(f, N_FILES));
	if (chance(f, 20))
		out.family = chance(f, 2) ? border(f) : below(f, 64);
	if (chance(f, 20))
		out.scope = chance(f, 2) ? 1 : border(f);
	if (chance(f, 30))
		out.port = border(f);
	if (chance(f, 30))
		out.addr[below(f, 16)] = next(f);
	return out;
}

static void random_send(struct fuzzer *f, struct leap_send *send)
{
	/* Long frames are rare, as they take long. */
	uint32_t bytes = chance(f, 16) ? 1 + below(f, LEAP_FRAME_MAX) : 1 + below(f, 3000);

	*send = frame_send(small_or_border(f, LEAP_BANKS), below(f, 2 * LEAP_BANKS), bytes);
	send->watch = small_or_border(f, LEAP_BANKS);
	if (chance(f, 4))
		send->bitmap[0] = next(f);
	if (chance(f, 4))
		send->bitmap[1] = next(f);
	if (chance(f, 10))
		send->n_chunks = border(f);
	if (chance(f, 10))
		send->frame_bytes = border(f);
	if (chance(f, 20))
		send->seq = border(f);
	if (chance(f, 20))
		send->reserved = border(f);
}

void likely_argument(struct fuzzer *f, unsigned int command, uint32_t file, union argument *arg)
{
	memset(arg, 0, sizeof(*arg));
	switch (command) {
	case LEAP_IOC_HELLO:
		arg->hello.api_version = chance(f, 6) ? border(f) : LEAP_API_VERSION;
		break;
	case LEAP_IOC_SET_PORT:
		arg->local = random_endpoint(f, file);
		/* Those of the files are taken. */
		if (!chance(f, 8))
			arg->local.port = htons(HERE + below(f, 2 * N_FILES));
		break;
	case LEAP_IOC_SET_PEER:
	case LEAP_IOC_MOVE_PEER:
		arg->peer.from = random_endpoint(f, file);
		arg->peer.session = chance(f, 4) ? below(f, 3) : 1;
		arg->peer.first_seq = chance(f, 4) ? border(f) : 0;
		arg->peer.reserved = chance(f, 20) ? border(f) : 0;
		break;
	case LEAP_IOC_SET_DEST:
		arg->dest.to = random_endpoint(f, file);
		arg->dest.session = chance(f, 4) ? below(f, 3) : 1;
		break;
	case LEAP_IOC_WAIT_DATA:
		arg->wait.timeout_us = chance(f, 8) ? below(f, 2000) : 0;
		arg->wait.busy_us = chance(f, 8) ? border(f) : below(f, 10);
		break;
	case LEAP_IOC_SEND:
		random_send(f, &arg->send);
		break;
	case LEAP_IOC_REJECT:
		arg->reject.bank = small_or_border(f, LEAP_BANKS);
		arg->reject.seq = chance(f, 4) ? border(f) : arg->reject.bank + below(f, 2) * LEAP_BANKS;
		arg->reject.bitmap[0] = chance(f, 2) ? ~0ULL : next(f);
		arg->reject.bitmap[1] = next(f);
		break;
	case LEAP_IOC_GET_BANK_SRC:
		arg->src.bank = small_or_border(f, LEAP_BANKS);
		break;
	}
}

void damage(struct fuzzer *f, union argument *arg)
{
	uint32_t i;

	if (chance(f, 2)) {
		arg->words[below(f, 8)] = border(f);
		return;
	}
	for (i = 0; i < sizeof(arg->words) / 8; i++)
		arg->words[i] = chance(f, 2) ? border(f) : next(f);
}
