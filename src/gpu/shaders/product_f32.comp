#version 450
#extension GL_GOOGLE_include_directive : require
#include "exact.glsl"
// Rows of f32 by a matrix of f32: 16 running sums a product. A workgroup has 8 weight rows and an activation row.
layout(local_size_x = 128) in;
// Whether each activation row, or each few, has a matrix of its own: that of an expert.
layout(constant_id = 1) const bool BY_EXPERT = false;
layout(push_constant) uniform Push {
    Floats w; Floats x; Floats y; uint k; uint rows; uint width; uint column; uint adds; uint share;
    Words chosen;
};
shared float lanes[8][16];
void main() {
    uint row = gl_LocalInvocationID.x / 16u, lane = gl_LocalInvocationID.x % 16u;
    uint at_row = gl_WorkGroupID.x * 8u + row, y_row = gl_WorkGroupID.y;
    uint token = BY_EXPERT ? y_row / share : y_row, first = BY_EXPERT ? chosen.at[y_row] * rows : 0u;
    float sum = 0.0;
    if (at_row < rows)
        for (uint i = lane; i < k; i += 16u) sum = fused(x.at[token * k + i], w.at[(first + at_row) * k + i], sum);
    if (k % 16u != 0u && lane >= k % 16u) sum = add(sum, 0.0);
    lanes[row][lane] = sum;
    barrier();
    if (lane != 0u || at_row >= rows) return;
    float product = joined(lanes[row]);
    uint at = y_row * width + column + at_row;
    y.at[at] = adds != 0u ? add(y.at[at], product) : product;
}
