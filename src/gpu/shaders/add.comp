#version 450
#extension GL_GOOGLE_include_directive : require
#include "exact.glsl"
// Adds y * factor to x, row by row. A row for all has the stride 0.
layout(local_size_x = 64) in;
layout(push_constant) uniform Push { Floats x; Floats y; uint width; uint stride; float factor; };
void main() {
    uint i = gl_GlobalInvocationID.x, row = gl_WorkGroupID.y;
    if (i >= width) return;
    float term = y.at[row * stride + i];
    if (factor != 1.0) term = mul(term, factor);
    x.at[row * width + i] = add(x.at[row * width + i], term);
}
