// Arithmetic of f32 with the bits of the CPU's kernels.
//
// Vulkan promises little: `fma` may round twice, division and square root may be off by several units, and subnormal
// numbers may be flushed. So everything here rests on three operations that a self-test checks at each start: sums and
// products that are rounded to nearest, ties to even, with subnormals; and, where FUSED is set, `fma` away from
// subnormals. The rest is made of these and of integers.
#extension GL_EXT_spirv_intrinsics : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#extension GL_EXT_buffer_reference : require

// RoundingModeRTE and SignedZeroInfNanPreserve of 32 bits.
spirv_execution_mode(extensions = ["SPV_KHR_float_controls"], capabilities = [4467], 4462, 32);
spirv_execution_mode(extensions = ["SPV_KHR_float_controls"], capabilities = [4466], 4461, 32);

// Whether the device's `fma` rounds once.
layout(constant_id = 0) const bool FUSED = true;

layout(buffer_reference, std430, buffer_reference_align = 4) buffer Words { uint at[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Ints { int at[]; };
layout(buffer_reference, std430, buffer_reference_align = 4) buffer Floats { float at[]; };
layout(buffer_reference, std430, buffer_reference_align = 16) buffer Quads { uvec4 at[]; };

const uint INFINITE = 0x7f800000u;
const uint NOT_A_NUMBER = 0x7fc00000u;
const uint SIGN = 0x80000000u;
const uint MAGNITUDE = 0x7fffffffu;

uint bits(float x) { return floatBitsToUint(x); }
float number(uint x) { return uintBitsToFloat(x); }
float negative(float x) { return number(bits(x) ^ SIGN); }
bool is_zero(float x) { return (bits(x) & MAGNITUDE) == 0u; }

float mul(float a, float b) { precise float product = a * b; return product; }
float add(float a, float b) { precise float sum = a + b; return sum; }
float sub(float a, float b) { return add(a, negative(b)); }

// Integers of 64 bits as two words, the lower first.
uvec2 shift_left(uvec2 x, int n) {
    if (n == 0) return x;
    if (n >= 32) return uvec2(0u, n >= 64 ? 0u : x.x << (n - 32));
    return uvec2(x.x << n, (x.y << n) | (x.x >> (32 - n)));
}
uvec2 shift_right(uvec2 x, int n) {
    if (n == 0) return x;
    if (n >= 32) return uvec2(n >= 64 ? 0u : x.y >> (n - 32), 0u);
    return uvec2((x.x >> n) | (x.y << (32 - n)), x.y >> n);
}
uvec2 plus(uvec2 a, uvec2 b) {
    uint low = a.x + b.x;
    return uvec2(low, a.y + b.y + (low < a.x ? 1u : 0u));
}
uvec2 minus(uvec2 a, uvec2 b) { return uvec2(a.x - b.x, a.y - b.y - (a.x < b.x ? 1u : 0u)); }
bool is_more(uvec2 a, uvec2 b) { return a.y > b.y || (a.y == b.y && a.x > b.x); }
int highest_bit(uvec2 x) { return x.y != 0u ? 32 + findMSB(x.y) : findMSB(x.x); }
// Bits that are shifted out leave a 1 at the bottom.
uvec2 shift_right_sticky(uvec2 x, int n) {
    if (n <= 0) return x;
    if (n > 63) return uvec2(x == uvec2(0u) ? 0u : 1u, 0u);
    uvec2 y = shift_right(x, n);
    if (shift_left(y, n) != x) y.x |= 1u;
    return y;
}

// m * 2^e rounded to f32, ties to even. Bit 0 of m may stand for all that is below it.
uint rounded(uint sign, uvec2 m, int e) {
    if (m == uvec2(0u)) return sign;
    int top = highest_bit(m);
    int exponent = e + top;
    if (exponent > 127) return sign | INFINITE;
    int kept = exponent >= -126 ? 24 : 24 - (-126 - exponent);
    int dropped = top + 1 - kept;
    uint q;
    if (dropped <= 0) q = shift_left(m, -dropped).x;
    else if (dropped > 63) q = 0u;
    else {
        q = shift_right(m, dropped).x;
        uvec2 rest = minus(m, shift_left(uvec2(q, 0u), dropped));
        uvec2 middle = shift_left(uvec2(1u, 0u), dropped - 1);
        if (is_more(rest, middle) || (rest == middle && (q & 1u) == 1u)) q += 1u;
    }
    // The hidden bit adds 1 to the exponent, and so does a carry.
    if (exponent >= -126) q += uint(exponent + 126) << 23;
    return sign | min(q, INFINITE);
}

// A finite number as m * 2^e, with bit 23 of m set unless it is 0.
void take_apart(uint x, out uint m, out int e) {
    uint exponent = (x >> 23) & 0xffu;
    m = x & 0x7fffffu;
    if (exponent != 0u) {
        m |= 0x800000u;
        e = int(exponent) - 150;
    } else {
        e = -149;
    }
    if (m != 0u) {
        int n = 23 - findMSB(m);
        m <<= n;
        e -= n;
    }
}

// a * b + c by integers alone.
uint fma_by_integers(uint a, uint b, uint c) {
    uint sign = (a ^ b) & SIGN;
    uint sign_c = c & SIGN;
    uint x = a & MAGNITUDE, y = b & MAGNITUDE, z = c & MAGNITUDE;
    if (x >= INFINITE || y >= INFINITE || z >= INFINITE) {
        if (x > INFINITE || y > INFINITE || z > INFINITE) return NOT_A_NUMBER;
        if (x == INFINITE || y == INFINITE) {
            if (x == 0u || y == 0u) return NOT_A_NUMBER;
            if (z == INFINITE && sign_c != sign) return NOT_A_NUMBER;
            return sign | INFINITE;
        }
        return c;
    }
    if (x == 0u || y == 0u) {
        if (z == 0u) return sign == sign_c ? sign : 0u;
        return c;
    }
    uint mx, my, mz;
    int ex, ey, ez;
    take_apart(x, mx, ex);
    take_apart(y, my, ey);
    uvec2 product;
    umulExtended(mx, my, product.y, product.x);
    int e = ex + ey;
    int n = 62 - highest_bit(product);
    product = shift_left(product, n);
    e -= n;
    if (z == 0u) return rounded(sign, product, e);
    take_apart(z, mz, ez);
    uvec2 m = uvec2(0u, mz << 7);
    ez -= 39;
    if (sign == sign_c) {
        if (e >= ez) return rounded(sign, plus(product, shift_right_sticky(m, e - ez)), e);
        return rounded(sign, plus(m, shift_right_sticky(product, ez - e)), ez);
    }
    if (e == ez && product == m) return 0u;
    if (e > ez || (e == ez && is_more(product, m)))
        return rounded(sign, minus(product, shift_right_sticky(m, e - ez)), e);
    return rounded(sign_c, minus(m, shift_right_sticky(product, ez - e)), ez);
}

// a * b + c by sums whose errors are known: Dekker's product, Knuth's sum, and rounding to odd before the last sum
// (Boldo and Melquiond, "Emulation of a FMA and correctly rounded sums", 2008).
float fma_by_sums(float a, float b, float c) {
    precise float ca = a * 4097.0, a1 = ca - (ca - a), a2 = a - a1;
    precise float cb = b * 4097.0, b1 = cb - (cb - b), b2 = b - b1;
    precise float p = a * b, p2 = ((a1 * b1 - p) + a1 * b2 + a2 * b1) + a2 * b2;
    precise float u = c + p2, t = u - c, u2 = (c - (u - t)) + (p2 - t);
    precise float h = p + u, t2 = h - p, h2 = (p - (h - t2)) + (u - t2);
    precise float v = h2 + u2, t3 = v - h2, error = (h2 - (v - t3)) + (u2 - t3);
    if (error != 0.0 && (bits(v) & 1u) == 0u)
        v = number((error > 0.0) == (v > 0.0) ? bits(v) + 1u : bits(v) - 1u);
    precise float y = h + v;
    return y;
}

// a * b + c, rounded once.
float fused(float a, float b, float c) {
    uint ea = (bits(a) >> 23) & 0xffu, eb = (bits(b) >> 23) & 0xffu, ec = (bits(c) >> 23) & 0xffu;
    int e = int(ea) + int(eb) - 127;
    // No number that arises is subnormal or overflows.
    bool is_safe = ea - 40u < 198u && eb - 40u < 198u && e > 60 && e < 240;
    if (is_safe && ec > 60u && ec < 240u) {
        if (!FUSED) return fma_by_sums(a, b, c);
        precise float y = fma(a, b, c);
        return y;
    }
    if (is_safe && is_zero(c)) return mul(a, b);
    if (((is_zero(a) && eb != 255u) || (is_zero(b) && ea != 255u)) && !is_zero(c)) return c;
    return number(fma_by_integers(bits(a), bits(b), bits(c)));
}

// a / b: the device's estimate of the quotient of the mantissas, corrected by its remainder.
float divide(float a, float b) {
    uint sign = (bits(a) ^ bits(b)) & SIGN;
    uint x = bits(a) & MAGNITUDE, y = bits(b) & MAGNITUDE;
    if (x > INFINITE || y > INFINITE) return number(NOT_A_NUMBER);
    if (x == INFINITE) return number(y == INFINITE ? NOT_A_NUMBER : sign | INFINITE);
    if (y == INFINITE) return number(sign);
    if (y == 0u) return number(x == 0u ? NOT_A_NUMBER : sign | INFINITE);
    if (x == 0u) return number(sign);
    uint mx, my;
    int ex, ey;
    take_apart(x, mx, ex);
    take_apart(y, my, ey);
    // q = floor(mx * 2^26 / my) lies between 2^25 and 2^27.
    uint q = uint((float(mx) / float(my)) * 67108864.0);
    int rest = int((mx << 26) - q * my);
    for (int i = 0; i < 64 && rest < 0; i++) { q -= 1u; rest += int(my); }
    for (int i = 0; i < 64 && rest >= int(my); i++) { q += 1u; rest -= int(my); }
    return number(rounded(sign, uvec2((q << 1) | (rest != 0 ? 1u : 0u), 0u), ex - ey - 27));
}

// The square root: likewise an estimate, corrected by its remainder.
float root(float a) {
    uint x = bits(a);
    if ((x & MAGNITUDE) > INFINITE) return number(NOT_A_NUMBER);
    if ((x & MAGNITUDE) == 0u) return a;
    if ((x & SIGN) != 0u) return number(NOT_A_NUMBER);
    if (x == INFINITE) return a;
    uint m;
    int e;
    take_apart(x, m, e);
    if ((e & 1) != 0) { m <<= 1; e -= 1; }
    // s = floor(sqrt(m * 2^26)) is below 2^26. The difference of squares is small, so its lower word is enough.
    uint s = uint(sqrt(float(m)) * 8192.0);
    int rest = int((m << 26) - s * s);
    for (int i = 0; i < 64 && rest < 0; i++) { rest += int(2u * s - 1u); s -= 1u; }
    for (int i = 0; i < 64 && rest > int(2u * s); i++) { rest -= int(2u * s + 1u); s += 1u; }
    return number(rounded(0u, uvec2((s << 1) | (rest != 0 ? 1u : 0u), 0u), e / 2 - 14));
}

// An integer, rounded to even where it has more than 24 bits.
float from_int(int x) {
    if (abs(x) < 16777216) return float(x);
    return number(rounded(uint(x) & SIGN, uvec2(x < 0 ? uint(-x) : uint(x), 0u), 0));
}

// Whether a < b, by integers, because a device may flush what it compares.
bool is_less(float a, float b) {
    uint x = bits(a), y = bits(b);
    if ((x & MAGNITUDE) > INFINITE || (y & MAGNITUDE) > INFINITE) return false;
    int i = (x & SIGN) != 0u ? int(SIGN) - int(x) : int(x);
    int j = (y & SIGN) != 0u ? int(SIGN) - int(y) : int(y);
    return i < j;
}
float larger(float a, float b) { return is_less(a, b) ? b : a; }
float within(float x, float least, float most) {
    if (is_less(x, least)) return least;
    return is_less(most, x) ? most : x;
}

// See `exp_to_one` in kernels/float.rs.
float exp_to_one(float x) {
    const float EXP_ROUND = 12582912.0 + 126.0;
    if (is_less(x, -87.3)) x = -87.3;
    float shifted = fused(x, 1.44269504088896340736, EXP_ROUND);
    float n = sub(shifted, EXP_ROUND);
    float r = fused(n, -1.4286068e-6, fused(n, -0.69314575, x));
    const float[7] terms = float[](2.78525e-3, 1.6726466e-2, 8.3333104e-2, 0.33333152, 1.0, 2.0, 2.0);
    float p = terms[0];
    for (int i = 1; i < 7; i++) p = fused(p, r, terms[i]);
    return mul(p, number(bits(shifted) << 23));
}
float exp_within(float x) { return exp_to_one(is_less(88.0, x) ? 88.0 : x); }
float swiglu(float gate, float up) {
    return mul(divide(gate, add(1.0, exp_within(negative(gate)))), up);
}

// f16 to f32, exact. Conversions are by integers, because Vulkan leaves their rounding and NaNs open.
float widened(uint h) {
    uint sign = (h & 0x8000u) << 16, e = (h >> 10) & 31u, m = h & 0x3ffu;
    if (e == 31u) return number(sign | INFINITE | (m << 13));
    if (e == 0u) {
        if (m == 0u) return number(sign);
        int n = 10 - findMSB(m);
        return number(sign | (uint(113 - n) << 23) | (((m << n) & 0x3ffu) << 13));
    }
    return number(sign | ((e + 112u) << 23) | (m << 13));
}
// f32 to f16, ties to even, limited to finite values.
uint narrowed(float x) {
    uint b = bits(x), sign = (b >> 16) & 0x8000u;
    b &= MAGNITUDE;
    if (b > INFINITE) return sign | 0x7e00u | ((b >> 13) & 0x3ffu);
    b = min(b, 0x477fe000u);
    if (b >= 0x38800000u) {
        uint normal = b - 0x38000000u;
        return sign | ((normal + 0xfffu + ((normal >> 13) & 1u)) >> 13);
    }
    if (b < 0x33000000u) return sign;
    uint m = (b & 0x7fffffu) | 0x800000u;
    int n = 126 - int(b >> 23);
    uint q = m >> n, rest = m & ((1u << n) - 1u), middle = 1u << (n - 1);
    if (rest > middle || (rest == middle && (q & 1u) == 1u)) q++;
    return sign | q;
}

// The sum of 16 running sums, in the order of `join` in kernels/float.rs.
float joined(float s[16]) {
    float four[4];
    for (int i = 0; i < 4; i++) four[i] = add(add(s[i], s[i + 8]), add(s[i + 4], s[i + 12]));
    return add(add(four[0], four[1]), add(four[2], four[3]));
}
