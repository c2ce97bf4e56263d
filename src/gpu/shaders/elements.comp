#version 450
#extension GL_GOOGLE_include_directive : require
#include "exact.glsl"
// The operations of exact.glsl on one set of operands each, for the self-test.
layout(local_size_x = 64) in;
layout(push_constant) uniform Push { Floats a; Floats b; Floats c; Words y; uint n; uint operation; };
void main() {
    uint i = gl_GlobalInvocationID.x;
    if (i >= n) return;
    float x = a.at[i], z = b.at[i];
    uint w = 0u;
    switch (operation) {
        case 0: w = bits(add(x, z)); break;
        case 1: w = bits(mul(x, z)); break;
        case 2: w = bits(fused(x, z, c.at[i])); break;
        case 3: w = bits(divide(x, z)); break;
        case 4: w = bits(root(x)); break;
        case 5: w = bits(swiglu(x, z)); break;
        case 6: w = bits(from_int(int(bits(x)))); break;
        case 7: w = bits(widened(bits(x) & 0xffffu)); break;
        case 8: w = narrowed(x); break;
    }
    y.at[i] = w;
}
