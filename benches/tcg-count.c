// SPDX-License-Identifier: MIT OR Apache-2.0
/*
 * A plugin for QEMU's user emulation that counts the guest's instructions. Whenever the guest has
 * written to its stdout, a line goes to the file given as `out=FILE`:
 *
 *	stage INSTRUCTIONS
 *
 * for what was executed since the line before, preceded by the blocks that were part of it, each
 * with its address, its length in instructions and how often it ran:
 *
 *	block 0xADDRESS LENGTH TIMES
 *
 * Exact for a guest with one thread. Debian's QEMU comes without the header of its plugin
 * interface, version 1, so what is used of that is declared here.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SYS_WRITE 64 /* of the guest, AArch64 */
#define BLOCKS_MAX (1u << 18)

struct qemu_plugin_tb;
enum { QEMU_PLUGIN_INLINE_ADD_U64 };
typedef void (*trans_cb)(uint64_t id, struct qemu_plugin_tb *tb);
typedef void (*syscall_cb)(uint64_t id, unsigned int vcpu, int64_t number, uint64_t a1, uint64_t a2, uint64_t a3,
			   uint64_t a4, uint64_t a5, uint64_t a6, uint64_t a7, uint64_t a8);

extern void qemu_plugin_register_vcpu_tb_trans_cb(uint64_t id, trans_cb cb);
extern void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *tb, int op, void *counter, uint64_t n);
extern void qemu_plugin_register_vcpu_syscall_cb(uint64_t id, syscall_cb cb);
extern size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *tb);
extern uint64_t qemu_plugin_tb_vaddr(const struct qemu_plugin_tb *tb);

__attribute__((visibility("default"))) int qemu_plugin_version = 1;

/* A block of code; one that is translated again is another, with the same address. */
static struct block {
	uint64_t address, length, times, times_before;
} blocks[BLOCKS_MAX];
static size_t n_blocks;
static FILE *out;

static void translated(uint64_t id, struct qemu_plugin_tb *tb)
{
	struct block *block = &blocks[n_blocks];

	(void)id;
	if (++n_blocks == BLOCKS_MAX) {
		fputs("tcg-count: too many blocks of code\n", stderr);
		exit(1);
	}
	block->address = qemu_plugin_tb_vaddr(tb);
	block->length = qemu_plugin_tb_n_insns(tb);
	qemu_plugin_register_vcpu_tb_exec_inline(tb, QEMU_PLUGIN_INLINE_ADD_U64, &block->times, 1);
}

static void called(uint64_t id, unsigned int vcpu, int64_t number, uint64_t fd, uint64_t a2, uint64_t a3, uint64_t a4,
		   uint64_t a5, uint64_t a6, uint64_t a7, uint64_t a8)
{
	uint64_t total = 0;

	(void)id, (void)vcpu, (void)a2, (void)a3, (void)a4, (void)a5, (void)a6, (void)a7, (void)a8;
	if (number != SYS_WRITE || fd != 1)
		return;
	for (size_t i = 0; i < n_blocks; i++)
		total += (blocks[i].times - blocks[i].times_before) * blocks[i].length;
	for (size_t i = 0; i < n_blocks; i++) {
		struct block *block = &blocks[i];
		uint64_t times = block->times - block->times_before;

		block->times_before = block->times;
		if (times)
			fprintf(out, "block 0x%" PRIx64 " %" PRIu64 " %" PRIu64 "\n", block->address, block->length, times);
	}
	fprintf(out, "stage %" PRIu64 "\n", total);
	fflush(out);
}

__attribute__((visibility("default"))) int qemu_plugin_install(uint64_t id, const void *info, int argc, char **argv)
{
	(void)info;
	if (argc == 1 && strncmp(argv[0], "out=", 4) == 0)
		out = fopen(argv[0] + 4, "w");
	if (!out) {
		fputs("tcg-count: give it out=FILE, which can be written\n", stderr);
		return -1;
	}
	qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
	qemu_plugin_register_vcpu_syscall_cb(id, called);
	return 0;
}
