#version 450
#extension GL_GOOGLE_include_directive : require
#include "exact.glsl"
#include "pages.glsl"
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
void main() {
    uint head = gl_WorkGroupID.x, row = gl_WorkGroupID.y;
    uint from = (row * (n_heads + 2u * n_kv_heads) + n_heads + head) * head_dim;
    Row at = rows.at[row];
    uint64_t unit = page_of(tables, table_len, at.stream, at.pos, page_units, start)
        + uint64_t(head) * head_units + uint64_t(at.pos % PAGE * head_dim);
    if (IS_HALF) {
        Words to = Words(kv + unit * 2ul);
        for (uint i = gl_LocalInvocationID.x; i < head_dim / 2u; i += 64u)
            to.at[i] = narrowed(qkv.at[from + 2u * i]) | narrowed(qkv.at[from + 2u * i + 1u]) << 16;
    } else {
        Words to = Words(kv + unit * 4ul);
        for (uint i = gl_LocalInvocationID.x; i < head_dim; i += 64u) to.at[i] = bits(qkv.at[from + i]);
    }
}
