#version 450
#extension GL_GOOGLE_include_directive : require
#include "exact.glsl"
#include "pages.glsl"
#include "lines.glsl"
// Attention of a row's head to the stored positions of its stream, in blocks of 32; see kernels/attend/mod.rs. A
// workgroup for each head of each row.
layout(local_size_x = 128) in;
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
};
const uint BLOCK = 32u;
shared float query[512];
shared float lanes[BLOCK][16];
shared float scores[BLOCK];
shared float maximum, total, correction;

#include "attend_lines.glsl"

float value_at(uint64_t unit) {
    if (KV == F32) return Floats(kv + unit * 4ul).at[0];
    uint word = Words(kv + (unit / 2ul) * 4ul).at[0];
    return widened((unit & 1ul) == 0ul ? word & 0xffffu : word >> 16);
}

// Softmax of a block: weights in `scores`, and the correction of earlier sums.
void soften(uint t) {
    if (t == 0u) {
        float most = maximum;
        for (uint i = 0u; i < BLOCK; i++) most = larger(most, scores[i]);
        correction = exp_to_one(sub(maximum, most));
        maximum = most;
    }
    barrier();
    if (t < BLOCK) scores[t] = exp_to_one(sub(scores[t], maximum));
    barrier();
    if (t < 16u) lanes[0][t] = add(scores[t], scores[t + 16u]);
    barrier();
    if (t == 0u) total = fused(total, correction, joined(lanes[0]));
    barrier();
}

void main() {
    uint t = gl_LocalInvocationID.x, head = gl_WorkGroupID.x, row = gl_WorkGroupID.y;
    uint from = (row * (n_heads + 2u * n_kv_heads) + head) * head_dim;
    uint kv_head = head / (n_heads / n_kv_heads);
    Row at = rows.at[row];
    uint end = at.pos + 1u;
    uint first = window != 0u && end > window ? end - window : 0u;
    for (uint i = t; i < head_dim; i += 128u) query[i] = qkv.at[from + i];
    if (t == 0u) {
        maximum = has_sinks != 0u ? sinks.at[head] : number(INFINITE | SIGN);
        total = has_sinks != 0u ? 1.0 : 0.0;
    }
    float sums[4] = float[](0.0, 0.0, 0.0, 0.0);
    if (KV == INT8) {
        barrier();
        quantize_query(t, head_dim);
    }
    for (uint block = first / BLOCK * BLOCK; block < end; block += BLOCK) {
        uint64_t page = page_of(tables, table_len, at.stream, block, page_units, start);
        uint64_t keys = page + uint64_t(kv_head) * head_units + uint64_t(block % PAGE * head_dim);
        uint64_t values = keys + uint64_t(n_kv_heads) * head_units;
        if (KV == INT8) {
            keys = key_block(kv, page, kv_head, block / BLOCK, head_dim);
            values = value_block(kv, page, n_kv_heads, kv_head, block / BLOCK, head_dim);
        }
        barrier();
        if (KV == INT8)
            for (uint i = t; i < BLOCK * groups_of(head_dim, KEY_GROUP); i += 128u)
                lanes[i % BLOCK][i / BLOCK] = key_product(keys, i / BLOCK, i % BLOCK, head_dim);
        else for (uint i = t; i < BLOCK * 16u; i += 128u) {
            uint position = i / 16u, lane = i % 16u;
            float sum = 0.0;
            if (block + position >= first && block + position < end)
                for (uint c = lane; c < head_dim; c += 16u)
                    sum = fused(query[c], value_at(keys + uint64_t(position * head_dim + c)), sum);
            if (head_dim % 16u != 0u && lane >= head_dim % 16u) sum = add(sum, 0.0);
            lanes[position][lane] = sum;
        }
        barrier();
        if (t < BLOCK) {
            bool is_seen = block + t >= first && block + t < end;
            float sum = 0.0;
            if (KV != INT8) sum = joined(lanes[t]);
            else for (uint g = 0u; g < groups_of(head_dim, KEY_GROUP); g++)
                sum = fused(lanes[t][g], query_scales[g], sum);
            scores[t] = is_seen ? mul(sum, scale) : number(INFINITE | SIGN);
        }
        barrier();
        soften(t);
        if (KV == INT8) {
            for (uint g = 0u; g * VALUE_GROUP < head_dim; g++) {
                set_codes(t, values, g, scores[t % BLOCK]);
                uint c = g * VALUE_GROUP + t;
                if (c < head_dim)
                    sums[g] = fused(value_product(values, c), code_step, mul(sums[g], correction));
            }
            continue;
        }
        uint low = max(first, block) - block, high = min(end, block + BLOCK) - block;
        for (uint c = t, i = 0u; c < head_dim; c += 128u, i++) {
            float sum = 0.0;
            for (uint position = low; position < high; position++)
                sum = fused(scores[position], value_at(values + uint64_t(position * head_dim + c)), sum);
            sums[i] = fused(sums[i], correction, sum);
        }
    }
    for (uint c = t, i = 0u; c < head_dim; c += 128u, i++)
        y.at[(row * n_heads + head) * head_dim + c] = divide(sums[i], total);
}
