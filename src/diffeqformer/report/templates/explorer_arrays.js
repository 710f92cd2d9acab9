// What stands in the page: arrays in half or single precision, and a tokenizer.
const decode = (base64, places) => {
  const bytes = Uint8Array.from(atob(base64.trim()), (c) => c.charCodeAt(0)).buffer;
  const half = Float32Array.from({ length: 65536 }, (_, bits) => {
    const [sign, exponent, fraction] = [bits & 0x8000 ? -1 : 1, (bits >> 10) & 31, bits & 1023];
    return sign * (exponent === 31 ? (fraction ? NaN : Infinity) : exponent ? 2 ** (exponent - 15) * (1 + fraction / 1024) : 2 ** -24 * fraction);
  });
  const array = ([kind, offset, shape]) => {
    const size = shape.reduce((a, b) => a * b, 1);
    const values = kind === "<f4" ? new Float32Array(bytes, offset, size) : Float32Array.from(new Uint16Array(bytes, offset, size), (bits) => half[bits]);
    return { values, shape };
  };
  return Object.fromEntries(Object.entries(places).map(([name, place]) => [name, array(place)]));
};

// Byte-level BPE with GPT-2's pre-tokenisation, or whole words.
const SPLIT = /'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\p{White_Space}\p{L}\p{N}]+|\p{White_Space}+(?!\P{White_Space})|\p{White_Space}+/gu;
const BYTES = (() => {
  const plain = (b) => (b > 32 && b < 127) || (b > 160 && b < 256 && b !== 173);
  let next = 256;
  return Array.from({ length: 256 }, (_, b) => String.fromCharCode(plain(b) ? b : next++));
})();
const encoder = ({ kind, vocabulary, merges, unknown }) => {
  if (kind === "words") return (text) => text.split(/\p{White_Space}+/u).filter(Boolean).map((word) => (Object.hasOwn(vocabulary, word) ? vocabulary[word] : unknown));
  const ranks = new Map(merges.map((pair, rank) => [pair.join(" "), rank]));
  const word = (piece) => {
    const parts = Array.from(new TextEncoder().encode(piece), (b) => BYTES[b]);
    for (;;) {
      let [best, at] = [Infinity, -1];
      for (let i = 0; i + 1 < parts.length; i += 1) {
        const rank = ranks.get(`${parts[i]} ${parts[i + 1]}`) ?? Infinity;
        if (rank < best) [best, at] = [rank, i];
      }
      if (at < 0) return parts.map((part) => vocabulary[part]).filter((id) => id !== undefined); // as Python drops such bytes
      parts.splice(at, 2, parts[at] + parts[at + 1]);
    }
  };
  return (text) => Array.from(text.matchAll(SPLIT), ([piece]) => word(piece)).flat();
};
