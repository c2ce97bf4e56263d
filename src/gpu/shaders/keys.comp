#version 450
#extension GL_GOOGLE_include_directive : require
#include "exact.glsl"
// Normalises the queries and keys of rows in place, and multiplies each query by its key: a workgroup for each key head of
// each row.
layout(local_size_x = 64) in;
layout(push_constant) uniform Push {
    Floats x;          // [m, channels]: queries, keys, values
    Floats overlaps;   // [m, heads]
    uint channels;
    uint heads;
    uint head_dim;     // a multiple of 16
    float eps;
    float query_scale;
    float key_scale;
};
shared float values[2][512];
shared float lanes[2][16];
shared float factors[2];
void main() {
    uint t = gl_LocalInvocationID.x, head = gl_WorkGroupID.x, row = gl_WorkGroupID.y;
    uint query = row * channels + head * head_dim, key = query + heads * head_dim;
    for (uint i = t; i < head_dim; i += 64u) {
        values[0][i] = x.at[query + i];
        values[1][i] = x.at[key + i];
    }
    barrier();
    if (t < 32u) {
        uint of = t / 16u;
        float sum = 0.0;
        for (uint i = t % 16u; i < head_dim; i += 16u) sum = fused(values[of][i], values[of][i], sum);
        lanes[of][t % 16u] = sum;
    }
    barrier();
    if (t < 2u) factors[t] = divide(1.0, root(add(divide(joined(lanes[t]), float(head_dim)), eps)));
    barrier();
    for (uint i = t; i < head_dim; i += 64u) {
        values[0][i] = mul(mul(values[0][i], factors[0]), query_scale);
        values[1][i] = mul(mul(values[1][i], factors[1]), key_scale);
        x.at[query + i] = values[0][i];
        x.at[key + i] = values[1][i];
    }
    barrier();
    if (t < 16u) {
        float sum = 0.0;
        for (uint i = t; i < head_dim; i += 16u) sum = fused(values[1][i], values[0][i], sum);
        lanes[0][t] = sum;
    }
    barrier();
    if (t == 0u) overlaps.at[row * heads + head] = joined(lanes[0]);
}
