// Random draws of plans. Mirrors torch_dataloader_utils/seeding.py; derive_key is deriveKey here, and so on.
//
// Keys, of which a plan needs few, are BigInt. The words that are drawn for each split are computed as pairs of
// unsigned 32-bit halves, which is many times as fast.
"use strict";

const PlannerHash = (() => {
  const MASK = (1n << 64n) - 1n;
  const GAMMA = 0x9e3779b97f4a7c15n;
  const BLOCK = 128; // bytes that BLAKE2b compresses at a time
  const DIGEST = 8; // bytes of a key

  // The initial state, and the order in which each round takes the 16 words of a block (RFC 7693).
  const INITIAL = [
    0x6a09e667f3bcc908n, 0xbb67ae8584caa73bn, 0x3c6ef372fe94f82bn, 0xa54ff53a5f1d36f1n,
    0x510e527fade682d1n, 0x9b05688c2b3e6c1fn, 0x1f83d9abfb41bd6bn, 0x5be0cd19137e2179n,
  ];
  const TEN_ROUNDS = [
    "0123456789abcdef", "ea489fd61c02b753", "b8c052fdae367194", "7931dcbe265a40f8", "905724afe1bc683d",
    "2c6a0b834d75fe19", "c51fed4a0763928b", "db7ec13950f4862a", "6fe9b308c2d714a5", "a2847615fb9e3cd0",
  ].map((line) => [...line].map((digit) => parseInt(digit, 16)));
  const ROUNDS = [...TEN_ROUNDS, TEN_ROUNDS[0], TEN_ROUNDS[1]];
  // The four words that each of a round's eight steps mixes: the columns of a 4 by 4 square, then its diagonals.
  const QUARTERS = [
    [0, 4, 8, 12], [1, 5, 9, 13], [2, 6, 10, 14], [3, 7, 11, 15],
    [0, 5, 10, 15], [1, 6, 11, 12], [2, 7, 8, 13], [3, 4, 9, 14],
  ];

  const rotateRight = (word, bits) => ((word >> bits) | (word << (64n - bits))) & MASK;

  function mixQuarter(v, [a, b, c, d], x, y) {
    v[a] = (v[a] + v[b] + x) & MASK;
    v[d] = rotateRight(v[d] ^ v[a], 32n);
    v[c] = (v[c] + v[d]) & MASK;
    v[b] = rotateRight(v[b] ^ v[c], 24n);
    v[a] = (v[a] + v[b] + y) & MASK;
    v[d] = rotateRight(v[d] ^ v[a], 16n);
    v[c] = (v[c] + v[d]) & MASK;
    v[b] = rotateRight(v[b] ^ v[c], 63n);
  }

  // The state after a block of 128 bytes; `length` counts the bytes of the message up to the end of this block.
  function compress(state, block, length, isLast) {
    const words = Array.from({ length: 16 }, (_, i) => block.getBigUint64(8 * i, true));
    const v = [...state, ...INITIAL];
    v[12] ^= BigInt(length);
    if (isLast) v[14] ^= MASK;
    for (const order of ROUNDS) {
      QUARTERS.forEach((quarter, i) => mixQuarter(v, quarter, words[order[2 * i]], words[order[2 * i + 1]]));
    }
    return state.map((word, i) => word ^ v[i] ^ v[i + 8]);
  }

  // hashlib.blake2b(bytes, digest_size=8), as a little-endian number.
  function blake2b64(bytes) {
    const blocks = Math.max(1, Math.ceil(bytes.length / BLOCK));
    const padded = new Uint8Array(blocks * BLOCK);
    padded.set(bytes);
    let state = INITIAL.map((word, i) => (i ? word : word ^ 0x01010000n ^ BigInt(DIGEST)));
    for (let i = 0; i < blocks; i++) {
      const length = Math.min(bytes.length, (i + 1) * BLOCK);
      state = compress(state, new DataView(padded.buffer, i * BLOCK, BLOCK), length, i === blocks - 1);
    }
    return state[0];
  }

  // derive_key: strings are purposes; everything else is a whole number.
  function deriveKey(purpose, ...numbers) {
    const text = [`str:${purpose}`, ...numbers.map((number) => `int:${BigInt(number)}`)].join("\x1f");
    return blake2b64(new TextEncoder().encode(text));
  }

  // The high half of the product of two 32-bit numbers.
  function highProduct(a, b) {
    const low = (a & 0xffff) * (b & 0xffff);
    const middle = (a >>> 16) * (b & 0xffff) + (low >>> 16);
    const other = (a & 0xffff) * (b >>> 16) + (middle & 0xffff);
    return (a >>> 16) * (b >>> 16) + Math.floor(middle / 65536) + Math.floor(other / 65536);
  }

  // SplitMix64's output function of the counter (high, low), without its high half.
  function lowOfMix(high, low) {
    let shiftedLow = (low ^ ((low >>> 30) | (high << 2))) >>> 0;
    let shiftedHigh = (high ^ (high >>> 30)) >>> 0;
    low = Math.imul(shiftedLow, 0x1ce4e5b9) >>> 0;
    high = highProduct(shiftedLow, 0x1ce4e5b9) + Math.imul(shiftedHigh, 0x1ce4e5b9) + Math.imul(shiftedLow, 0xbf58476d);
    high >>>= 0;
    shiftedLow = (low ^ ((low >>> 27) | (high << 5))) >>> 0;
    shiftedHigh = (high ^ (high >>> 27)) >>> 0;
    low = Math.imul(shiftedLow, 0x133111eb) >>> 0;
    high = highProduct(shiftedLow, 0x133111eb) + Math.imul(shiftedHigh, 0x133111eb) + Math.imul(shiftedLow, 0x94d049bb);
    high >>>= 0;
    return (low ^ ((low >>> 31) | (high << 1))) >>> 0;
  }

  // The low halves of random_words(n, key).
  function lowWords(n, key) {
    const words = new Uint32Array(n);
    let low = Number(key & 0xffffffffn);
    let high = Number(key >> 32n);
    for (let i = 0; i < n; i++) {
      low += 0x7f4a7c15;
      high = (high + 0x9e3779b9 + (low > 0xffffffff ? 1 : 0)) >>> 0;
      low >>>= 0;
      words[i] = lowOfMix(high, low);
    }
    return words;
  }

  // permutation: places sorted by 32-bit words; equal words keep their order. Exact for n up to 2**21.
  function permutation(n, key) {
    const keyed = Float64Array.from(lowWords(n, key), (word, i) => word * 2 ** 21 + i);
    return Int32Array.from(keyed.sort(), (value) => value % 2 ** 21);
  }

  // random_below: a number in [0, n).
  function randomBelow(n, key) {
    let z = (key + GAMMA) & MASK;
    z = ((z ^ (z >> 30n)) * 0xbf58476d1ce4e5b9n) & MASK;
    z = ((z ^ (z >> 27n)) * 0x94d049bb133111ebn) & MASK;
    return Number(((z ^ (z >> 31n)) * BigInt(n)) >> 64n);
  }

  return { MOST: 2 ** 21, deriveKey, permutation, randomBelow };
})();
