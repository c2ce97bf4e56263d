#version 450
#extension GL_GOOGLE_include_directive : require
#include "exact.glsl"
#include "pages.glsl"
#include "lines.glsl"
// Attention of few rows to many positions: like attend.comp, but blocks are computed beside each other, as they depend on
// each other through the largest score alone. Four shaders follow each other. A lane is a head of a row.
layout(local_size_x = 128) in;
layout(constant_id = 2) const uint PART = 0u;
const uint SCORES = 0u;   // x: blocks, y: lanes
const uint SOFTEN = 1u;   // x: lanes
const uint VALUES = 2u;   // x: blocks, y: lanes
const uint FINISH = 3u;   // x: lanes

layout(push_constant) uniform Push {
    Floats qkv;
    Floats y;            // [m, n_heads * head_dim]
    Floats sinks;
    Words tables;
    Rows rows;
    uint64_t kv;
    uint64_t page_units;
    uint64_t start;
    uint n_heads;
    uint n_kv_heads;
    uint head_dim;
    uint table_len;
    uint head_units;
    uint window;         // 0 for none
    float scale;
    uint has_sinks;
    Floats scratch;      // for each lane: weights, corrections, sums of blocks, total, outputs of blocks
    uint blocks;         // of a lane's scratch
};
const uint BLOCK = 32u;
shared float query[512];
shared float lanes[BLOCK][16];
shared float highest;

#include "attend_lines.glsl"

float value_at(uint64_t unit) {
    if (KV == F32) return Floats(kv + unit * 4ul).at[0];
    uint word = Words(kv + (unit / 2ul) * 4ul).at[0];
    return widened((unit & 1ul) == 0ul ? word & 0xffffu : word >> 16);
}

// Places in a lane's scratch.
uint scratch_of(uint lane) { return lane * (blocks * (BLOCK + 2u + head_dim) + 1u); }
uint weights_at(uint lane, uint block) { return scratch_of(lane) + block * BLOCK; }
uint corrections_at(uint lane) { return scratch_of(lane) + blocks * BLOCK; }
uint sums_at(uint lane) { return corrections_at(lane) + blocks; }
uint total_at(uint lane) { return sums_at(lane) + blocks; }
uint outputs_at(uint lane, uint block) { return total_at(lane) + 1u + block * head_dim; }

void main() {
    uint t = gl_LocalInvocationID.x;
    bool by_block = PART == SCORES || PART == VALUES;
    uint lane = by_block ? gl_WorkGroupID.y : gl_WorkGroupID.x;
    uint head = lane % n_heads, row = lane / n_heads;
    Row at = rows.at[row];
    uint end = at.pos + 1u;
    uint first = window != 0u && end > window ? end - window : 0u;
    uint from = first / BLOCK, n = (end + BLOCK - 1u) / BLOCK - from;
    // Index of a block from the lane's first.
    uint index = by_block ? gl_WorkGroupID.x : 0u;
    if (index >= n) return;
    uint block = (from + index) * BLOCK;
    uint64_t page = page_of(tables, table_len, at.stream, block, page_units, start);
    uint kv_head = head / (n_heads / n_kv_heads);
    uint64_t keys = page + uint64_t(kv_head) * head_units + uint64_t(block % PAGE * head_dim);
    uint64_t values = keys + uint64_t(n_kv_heads) * head_units;
    if (KV == INT8) {
        keys = key_block(kv, page, kv_head, block / BLOCK, head_dim);
        values = value_block(kv, page, n_kv_heads, kv_head, block / BLOCK, head_dim);
    }

    if (PART == SCORES) {
        uint q = (row * (n_heads + 2u * n_kv_heads) + head) * head_dim;
        for (uint i = t; i < head_dim; i += 128u) query[i] = qkv.at[q + i];
        barrier();
        if (KV == INT8) {
            quantize_query(t, head_dim);
            barrier();
            for (uint i = t; i < BLOCK * groups_of(head_dim, KEY_GROUP); i += 128u)
                lanes[i % BLOCK][i / BLOCK] = key_product(keys, i / BLOCK, i % BLOCK, head_dim);
        } else for (uint i = t; i < BLOCK * 16u; i += 128u) {
            uint position = i / 16u, part = i % 16u;
            float sum = 0.0;
            if (block + position >= first && block + position < end)
                for (uint c = part; c < head_dim; c += 16u)
                    sum = fused(query[c], value_at(keys + uint64_t(position * head_dim + c)), sum);
            if (head_dim % 16u != 0u && part >= head_dim % 16u) sum = add(sum, 0.0);
            lanes[position][part] = sum;
        }
        barrier();
        if (t < BLOCK) {
            bool is_seen = block + t >= first && block + t < end;
            float sum = 0.0;
            if (KV != INT8) sum = joined(lanes[t]);
            else for (uint g = 0u; g < groups_of(head_dim, KEY_GROUP); g++)
                sum = fused(lanes[t][g], query_scales[g], sum);
            scratch.at[weights_at(lane, index) + t] = is_seen ? mul(sum, scale) : number(INFINITE | SIGN);
        }
    }
    if (PART == SOFTEN) {
        // The sums' places hold the blocks' largest scores first.
        for (uint b = t; b < n; b += 128u) {
            float most = number(INFINITE | SIGN);
            for (uint i = 0u; i < BLOCK; i++) most = larger(most, scratch.at[weights_at(lane, b) + i]);
            scratch.at[sums_at(lane) + b] = most;
        }
        memoryBarrierBuffer();
        barrier();
        if (t == 0u) {
            // The corrections' places hold the largest score before each block.
            float most = has_sinks != 0u ? sinks.at[head] : number(INFINITE | SIGN);
            for (uint b = 0u; b < n; b++) {
                scratch.at[corrections_at(lane) + b] = most;
                most = larger(most, scratch.at[sums_at(lane) + b]);
            }
            highest = most;
        }
        memoryBarrierBuffer();
        barrier();
        // A block needs the next one's place, so all are read before any is written.
        float before[8], after[8];
        for (uint round = 0u; round * 1024u < n; round++) {
            for (uint i = 0u; i < 8u; i++) {
                uint b = round * 1024u + i * 128u + t;
                if (b >= n) break;
                before[i] = scratch.at[corrections_at(lane) + b];
                after[i] = b + 1u < n ? scratch.at[corrections_at(lane) + b + 1u] : highest;
            }
            memoryBarrierBuffer();
            barrier();
            for (uint i = 0u; i < 8u; i++) {
                uint b = round * 1024u + i * 128u + t;
                if (b >= n) break;
                uint weights = weights_at(lane, b);
                float s[16];
                for (uint j = 0u; j < 16u; j++) {
                    float low = exp_to_one(sub(scratch.at[weights + j], after[i]));
                    float high = exp_to_one(sub(scratch.at[weights + 16u + j], after[i]));
                    scratch.at[weights + j] = low;
                    scratch.at[weights + 16u + j] = high;
                    s[j] = add(low, high);
                }
                scratch.at[corrections_at(lane) + b] = exp_to_one(sub(before[i], after[i]));
                scratch.at[sums_at(lane) + b] = joined(s);
            }
            memoryBarrierBuffer();
            barrier();
        }
        if (t == 0u) {
            float total = has_sinks != 0u ? 1.0 : 0.0;
            for (uint b = 0u; b < n; b++)
                total = fused(total, scratch.at[corrections_at(lane) + b], scratch.at[sums_at(lane) + b]);
            scratch.at[total_at(lane)] = total;
        }
    }
    if (PART == VALUES && KV == INT8) {
        uint weights = weights_at(lane, index);
        float weight = scratch.at[weights + t % BLOCK];
        for (uint g = 0u; g * VALUE_GROUP < head_dim; g++) {
            set_codes(t, values, g, weight);
            uint c = g * VALUE_GROUP + t;
            if (c < head_dim) scratch.at[outputs_at(lane, index) + c] = value_product(values, c);
            // All weights have been read: the steps take their places.
            if (t == 0u) scratch.at[weights + g] = code_step;
        }
    }
    if (PART == VALUES && KV != INT8) {
        uint low = max(first, block) - block, high = min(end, block + BLOCK) - block;
        for (uint c = t; c < head_dim; c += 128u) {
            float sum = 0.0;
            for (uint position = low; position < high; position++)
                sum = fused(scratch.at[weights_at(lane, index) + position],
                    value_at(values + uint64_t(position * head_dim + c)), sum);
            scratch.at[outputs_at(lane, index) + c] = sum;
        }
    }
    if (PART == FINISH) {
        for (uint c = t; c < head_dim; c += 128u) {
            float sum = 0.0;
            for (uint b = 0u; b < n; b++) {
                float correction = scratch.at[corrections_at(lane) + b];
                float own = scratch.at[outputs_at(lane, b) + c];
                if (KV != INT8) sum = fused(sum, correction, own);
                else sum = fused(own, scratch.at[weights_at(lane, b) + c / VALUE_GROUP], mul(sum, correction));
            }
            y.at[lane * head_dim + c] = divide(sum, scratch.at[total_at(lane)]);
        }
    }
}
