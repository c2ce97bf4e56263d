/* SPDX-License-Identifier: GPL-2.0 */
/*
 * The datagram's header as it travels, and what a checked one means. Also
 * compiled in user space, by the tests.
 *
 *  0 u32 magic "LEP1"    4 u8 version   5 u8 kind       6 u16 chunk index
 *  8 u64 session        16 u32 seq     20 u16 n_chunks 22 u16 payload_bytes
 * 24 u32 frame_bytes    28 u32 crc32 of bytes 0..28 and the payload
 *
 * All little-endian. The payload follows. A frame lies in slots of
 * LEAP_SLOT_BYTES, every one full but the last.
 */
#ifndef LEAP_WIRE_H
#define LEAP_WIRE_H

#include <linux/types.h>
#include "leap_uapi.h"

#ifdef __KERNEL__
#include <asm/byteorder.h>
#else
#include <endian.h>
#define le16_to_cpu(x) le16toh((__u16)(x))
#define le32_to_cpu(x) le32toh((__u32)(x))
#define le64_to_cpu(x) le64toh((__u64)(x))
#define cpu_to_le16(x) ((__le16)htole16(x))
#define cpu_to_le32(x) ((__le32)htole32(x))
#define cpu_to_le64(x) ((__le64)htole64(x))
#endif

#define LEAP_MAGIC		0x3150454cU	/* "LEP1" */
#define LEAP_WIRE_VERSION	1
#define LEAP_KIND_DATA		0
#define LEAP_HEADER_BYTES	32

/**
 * struct leap_datagram - header of every datagram
 * @magic: LEAP_MAGIC
 * @version: LEAP_WIRE_VERSION
 * @kind: LEAP_KIND_DATA; all other kinds are for user space
 * @chunk: index of this chunk in its frame
 * @session: chosen by the two ends when they met
 * @seq: number of the frame, wraps around
 * @n_chunks: chunks in the frame
 * @payload_bytes: bytes that follow this header
 * @frame_bytes: bytes of the frame's slots together
 * @crc: over all of the above and the payload; checked by the reader
 */
struct leap_datagram {
	__le32 magic;
	__u8 version;
	__u8 kind;
	__le16 chunk;
	__le64 session;
	__le32 seq;
	__le16 n_chunks;
	__le16 payload_bytes;
	__le32 frame_bytes;
	__le32 crc;
};

/**
 * struct leap_chunk - a header whose numbers agree with each other
 * @session: as received
 * @seq: as received
 * @frame_bytes: at most LEAP_FRAME_MAX
 * @crc: as received
 * @n_chunks: 1 to LEAP_MAX_CHUNKS, and what @frame_bytes needs
 * @chunk: below @n_chunks
 * @bytes: 1 to LEAP_SLOT_BYTES: the length of this chunk's payload
 */
struct leap_chunk {
	__u64 session;
	__u32 seq;
	__u32 frame_bytes;
	__u32 crc;
	__u16 n_chunks;
	__u16 chunk;
	__u16 bytes;
};

/**
 * leap_frame_fits() - whether a frame's two sizes agree and fit a bank
 * @n_chunks: chunks
 * @frame_bytes: bytes of all chunks
 *
 * Return: true if every chunk but the last is full and the last not empty.
 */
static inline bool leap_frame_fits(__u32 n_chunks, __u32 frame_bytes)
{
	return n_chunks >= 1 && n_chunks <= LEAP_MAX_CHUNKS &&
	       frame_bytes > (n_chunks - 1) * LEAP_SLOT_BYTES &&
	       frame_bytes <= n_chunks * LEAP_SLOT_BYTES;
}

/**
 * leap_chunk_bytes() - length of one chunk's payload
 * @n_chunks: chunks of the frame
 * @frame_bytes: bytes of the frame, which fits
 * @chunk: index of the chunk, below @n_chunks
 *
 * Return: LEAP_SLOT_BYTES, or what is left for the last chunk.
 */
static inline __u32 leap_chunk_bytes(__u32 n_chunks, __u32 frame_bytes,
				     __u32 chunk)
{
	if (chunk + 1 < n_chunks)
		return LEAP_SLOT_BYTES;
	return frame_bytes - (n_chunks - 1) * LEAP_SLOT_BYTES;
}

bool leap_is_data(const struct leap_datagram *header);
bool leap_chunk_parse(const struct leap_datagram *header, __u32 bytes,
		      struct leap_chunk *chunk);

#endif
