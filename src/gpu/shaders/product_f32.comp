#version 450
#extension GL_GOOGLE_include_directive : require
#include "exact.glsl"
// Rows of f32 by a matrix of f32: 16 running sums a product. A workgroup has 8 weight rows and an activation row.
layout(local_size_x = 128) in;
layout(push_constant) uniform Push {
    Floats w; Floats x; Floats y; uint k; uint rows; uint width; uint column; uint adds;
};
shared float lanes[8][16];
void main() {
    uint row = gl_LocalInvocationID.x / 16u, lane = gl_LocalInvocationID.x % 16u;
    uint at_row = gl_WorkGroupID.x * 8u + row, token = gl_WorkGroupID.y;
    float sum = 0.0;
    if (at_row < rows)
        for (uint i = lane; i < k; i += 16u) sum = fused(x.at[token * k + i], w.at[at_row * k + i], sum);
    if (k % 16u != 0u && lane >= k % 16u) sum = add(sum, 0.0);
    lanes[row][lane] = sum;
    barrier();
    if (lane != 0u || at_row >= rows) return;
    float product = joined(lanes[row]);
    uint at = token * width + column + at_row;
    y.at[at] = adds != 0u ? add(y.at[at], product) : product;
}
