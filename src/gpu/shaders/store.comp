#version 450
#extension GL_GOOGLE_include_directive : require
#include "exact.glsl"
#include "pages.glsl"
#include "lines.glsl"
// Writes the keys and values of all rows to their pages: a workgroup for each head of each row.
layout(local_size_x = 64) in;
layout(push_constant) uniform Push {
    Floats qkv;
    Words tables;
    Rows rows;
    uint64_t kv;
    uint64_t page_units;
    uint64_t start;      // of the layer's part, in units
    uint n_heads;
    uint n_kv_heads;
    uint head_dim;
    uint table_len;
    uint head_units;     // of a head's part of a page
};

shared float inverse;

// Bytes of other positions share a word, and other workgroups write them meanwhile.
void put(Words word, uint shift, uint mask, uint value) {
    atomicAnd(word.at[0], ~(mask << shift));
    atomicOr(word.at[0], (value & mask) << shift);
}

// Quantises a group of columns and writes them: a key's four columns are a word, a value's four positions.
void store_group(uint t, uint x, uint n, uint64_t lines, uint position, bool is_key) {
    if (t == 0u) {
        uint most = 0u;
        for (uint i = 0u; i < n; i++) most = max(most, bits(qkv.at[x + i]) & MAGNITUDE);
        if (most <= INFINITE && is_less(STORED_MAX, number(most))) most = bits(STORED_MAX);
        float exact = divide(number(most), 127.0);
        uint nearest = narrowed(exact);
        if (is_less(widened(nearest), exact)) nearest += 1u;
        put(Words(lines + uint64_t(position / 2u * 4u)), position % 2u * 16u, 0xffffu, nearest);
        bool has_codes = most <= INFINITE && nearest != 0u;
        inverse = has_codes ? divide(1.0, widened(nearest)) : 0.0;
    }
    barrier();
    uint columns = padded(n);
    for (uint i = t; i < (is_key ? columns / 4u : columns); i += 64u) {
        uint word = 0u, of_word = is_key ? 4u : 1u;
        for (uint j = 0u; j < of_word; j++) {
            uint c = i * of_word + j;
            float value = c < n && !is_zero(inverse) ? within(qkv.at[x + c], -STORED_MAX, STORED_MAX) : 0.0;
            word |= code_of(value, inverse) << (8u * j);
        }
        if (is_key) {
            uint line = 1u + 2u * i + position / 16u;
            Words(lines).at[line * LINE_WORDS + position % 16u] = word;
        } else {
            uint line = 1u + i / 16u * 8u + position / 4u;
            put(Words(lines + uint64_t((line * LINE_WORDS + i % 16u) * 4u)), position % 4u * 8u, 0xffu, word);
        }
    }
    barrier();
}

void main() {
    uint head = gl_WorkGroupID.x, row = gl_WorkGroupID.y;
    uint from = (row * (n_heads + 2u * n_kv_heads) + n_heads + head) * head_dim;
    Row at = rows.at[row];
    uint64_t page = page_of(tables, table_len, at.stream, at.pos, page_units, start);
    if (KV == INT8) {
        bool is_key = head < n_kv_heads;
        uint block = at.pos / 32u;
        uint64_t lines = is_key ? key_block(kv, page, head, block, head_dim)
            : value_block(kv, page, n_kv_heads, head - n_kv_heads, block, head_dim);
        uint group = is_key ? KEY_GROUP : VALUE_GROUP;
        uint bytes = (is_key ? KEY_LINES : VALUE_LINES) * LINE_BYTES;
        for (uint g = 0u; g * group < head_dim; g++)
            store_group(gl_LocalInvocationID.x, from + g * group, min(group, head_dim - g * group),
                lines + uint64_t(g * bytes), at.pos % 32u, is_key);
        return;
    }
    uint64_t unit = page + uint64_t(head) * head_units + uint64_t(at.pos % PAGE * head_dim);
    if (KV == F16) {
        Words to = Words(kv + unit * 2ul);
        for (uint i = gl_LocalInvocationID.x; i < head_dim / 2u; i += 64u)
            to.at[i] = narrowed(qkv.at[from + 2u * i]) | narrowed(qkv.at[from + 2u * i + 1u]) << 16;
    } else {
        Words to = Words(kv + unit * 4ul);
        for (uint i = gl_LocalInvocationID.x; i < head_dim; i += 64u) to.at[i] = bits(qkv.at[from + i]);
    }
}
