// One row of a region, worked on by one block or a cluster of blocks: which thread holds which elements, the
// order of sweeps, the reductions between them, and the gradient. What is computed stands in the generated
// region R:
//
//   R::kWidth                    elements that a thread handles at once
//   R::Row                       values of the row, in shared memory
//   R::Raw, R::Input             kWidth elements of every tensor that is swept, as loaded; one element, as
//   fp32 R::Streams                   where the row's tensors lie; open, advance R::active, R::skip, R::begin
//   what is computed before the sweeps R::Phase0, ...               one sweep: anchors, terms, finish R::Emit
//   the gradient of an element
//
// A row is cut at multiples of 16 bytes of its first tensor: `head` elements before the first vector, whole
// vectors, `tail` elements behind. Vectors are dealt to threads so that a warp begins at a line of 128 bytes.

namespace lossc::cuda {

template <class R, int kThreads, int kCluster>
struct Span {
  static constexpr int kWidth = R::kWidth;
  int head, vectors, tail;
  int lead;  ///< vectors between the line's beginning and the first vector
  int rank;  ///< of this block in its cluster

  __device__ __forceinline__ Span(const char* row, int element_bytes, int slots) {
    const int phase = static_cast<int>(reinterpret_cast<u64>(row) & 15);
    head = ((16 - phase) & 15) / element_bytes;
    if (head > R::kVocab) head = R::kVocab;
    vectors = (R::kVocab - head) / kWidth;
    tail = R::kVocab - head - vectors * kWidth;
    const int bytes = kWidth * element_bytes;
    lead = static_cast<int>(reinterpret_cast<u64>(row + head * element_bytes) % 128) / bytes;
    if (vectors + lead > slots) lead = 0;
    rank = kCluster > 1 ? static_cast<int>(blockIdx.x % kCluster) : 0;
  }
  /// The vector of this thread in round k; outside of [0, vectors) there is none.
  __device__ __forceinline__ int vector(int k) const {
    return (k * kCluster + rank) * kThreads + static_cast<int>(threadIdx.x) - lead;
  }
  __device__ __forceinline__ bool has(int v) const {
    return static_cast<unsigned>(v) < static_cast<unsigned>(vectors);
  }
  /// Whether this thread handles the element.
  __device__ __forceinline__ bool owns(int element) const {
    const int inner = element - head;
    int owner = (inner / kWidth + lead) % (kThreads * kCluster);
    if (inner < 0) owner = element;
    if (inner >= vectors * kWidth) owner = inner - vectors * kWidth + head;
    return owner == rank * kThreads + static_cast<int>(threadIdx.x);
  }
};

/// The elements before the first and behind the last vector, one a thread: f(element relative to the first
/// vector).
template <class R, class S, class F>
LOSSC_INLINE void edges(const S& span, F f) {
  const int t = threadIdx.x;
  if (t < span.head + span.tail) f(t < span.head ? t - span.head : span.vectors * R::kWidth + t - span.head);
}

// ---- where the elements of a row come from
//
// A body has two members: vector(raw, first) for whole vectors and element(input, place) for single ones.

/// The vectors of a sweep in which one block reads all of the row from memory.
template <class R, class P, int kThreads, int kUnroll, class S, class F>
LOSSC_INLINE void sweep_memory(const typename R::Streams& streams, const S& span, F vector) {
  const u64 policy = cache_policy(P::kKeep);
#pragma unroll 1
  for (int v = static_cast<int>(threadIdx.x) - span.lead; v < span.vectors; v += kThreads * kUnroll) {
    typename R::Raw raw[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (span.has(v + u * kThreads)) P::template load<P::kKeep>(raw[u], streams, v + u * kThreads, policy);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (span.has(v + u * kThreads)) vector(raw[u], (v + u * kThreads) * R::kWidth);
    }
  }
}

/// The row is loaded once and stays in the registers of a block, or is dealt to those of a cluster of blocks.
template <class R, int kBlock, int kVectors, int kBlocks = 1>
struct Registers {
  static constexpr int kThreads = kBlock, kCluster = kBlocks;
  static constexpr int kSlots = kThreads * kVectors * kCluster;
  typename R::Raw raw[kVectors];

  template <class S>
  __device__ __forceinline__ void fetch(const typename R::Streams& streams, const S& span) {
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      const int v = span.vector(k);
      if (span.has(v)) R::template load<Keep::normal>(raw[k], streams, v, 0);
    }
  }
  /// All vectors.
  template <class P, class S, class F>
  __device__ __forceinline__ void sweep(const typename R::Streams&, const S& span, F vector) {
#pragma unroll
    for (int k = 0; k < kVectors; ++k) {
      const int v = span.vector(k);
      R::forget(raw[k]);
      if (span.has(v)) vector(raw[k], v * R::kWidth);
    }
  }
};

/// Every sweep reads the row again; hints keep it in the second-level cache until the last one.
template <class R, int kBlock, int kUnroll>
struct Streaming {
  static constexpr int kThreads = kBlock, kCluster = 1;
  static constexpr int kSlots = 0x7fffffff;

  template <class S>
  __device__ __forceinline__ void fetch(const typename R::Streams&, const S&) {}
  template <class P, class S, class F>
  __device__ __forceinline__ void sweep(const typename R::Streams& streams, const S& span, F vector) {
    sweep_memory<R, P, kThreads, kUnroll>(streams, span, vector);
  }
};

// ---- the row's program

/// Sums are added; of equal tops the one at the smallest place stays.
template <int kSums, int kTops>
struct Record {
  float sums[kSums > 0 ? kSums : 1];
  float tops[kTops > 0 ? kTops : 1];
  int places[kTops > 0 ? kTops : 1];

  __device__ __forceinline__ void clear() {
#pragma unroll
    for (int i = 0; i < kSums; ++i) sums[i] = 0.0f;
#pragma unroll
    for (int i = 0; i < kTops; ++i) {
      tops[i] = -infinity();
      places[i] = 0x7fffffff;
    }
  }
  __device__ __forceinline__ void merge(const Record& o) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) sums[i] += o.sums[i];
    merge_tops(o);
  }
  template <class Other>
  __device__ __forceinline__ void merge_tops(const Other& o) {
#pragma unroll
    for (int i = 0; i < kTops; ++i) {
      if (o.tops[i] > tops[i] || (o.tops[i] == tops[i] && o.places[i] < places[i])) {
        tops[i] = o.tops[i];
        places[i] = o.places[i];
      }
    }
  }
  __device__ __forceinline__ Record from_lane(int mask) const {
    Record o;
#pragma unroll
    for (int i = 0; i < kSums; ++i) o.sums[i] = __shfl_xor_sync(0xffffffffu, sums[i], mask);
#pragma unroll
    for (int i = 0; i < kTops; ++i) {
      o.tops[i] = __shfl_xor_sync(0xffffffffu, tops[i], mask);
      o.places[i] = __shfl_xor_sync(0xffffffffu, places[i], mask);
    }
    return o;
  }
};

/// All threads' records merged, in thread 0. Ends before other threads may write `warps` again only after a
/// barrier of the caller's.
template <int kThreads, class Rec>
LOSSC_INLINE void merge_block(Rec& record, Rec* warps) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) record.merge(record.from_lane(mask));
  constexpr int kWarps = kThreads / 32;
  if constexpr (kWarps > 1) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (lane == 0) warps[warp] = record;
    __syncthreads();
    if (warp == 0) {
      record.clear();
      if (lane < kWarps) record = warps[lane];
#pragma unroll
      for (int mask = kWarps / 2; mask > 0; mask /= 2) record.merge(record.from_lane(mask));
    }
  }
}

LOSSC_INLINE void cluster_arrive() {
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
}
LOSSC_INLINE void cluster_wait() {
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

/// Writes a record into the shared memory of a block of the cluster, at the place that it has in this one.
template <class Rec>
LOSSC_INLINE void store_remote(const Rec& record, Rec* place, int rank) {
  const unsigned local = static_cast<unsigned>(__cvta_generic_to_shared(place));
  unsigned remote;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(local), "r"(rank));
  const unsigned* words = reinterpret_cast<const unsigned*>(&record);
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(Rec) / 4); ++i) {
    asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(remote + 4 * i), "r"(words[i]) : "memory");
  }
}

/// Stands for the phase behind the last one.
struct NoPhase {
  static constexpr int kAnchors = 0;
};

template <class R, class Source, class Args>
struct RowProgram {
  static constexpr int kThreads = Source::kThreads, kCluster = Source::kCluster;
  static constexpr int kWidth = R::kWidth;
  static constexpr int kWarps = kThreads / 32;
  typedef Span<R, kThreads, kCluster> S;

  struct Shared {
    typename R::Row row;
    int good;
    Record<R::kMaxSums, R::kMaxTops> warps[kWarps];
    Record<R::kMaxSums, R::kMaxTops> ranks[2]
                                          [kCluster];  ///< in turn, so that none is written while it is read
  };

  const Args& a;
  i64 row;
  Shared& shared;
  typename R::Streams streams;
  S span;
  Source source;
  int exchanges = 0;

  __device__ __forceinline__ RowProgram(const Args& args, Shared& s)
      : a(args),
        row(args.head.row_begin + blockIdx.x / kCluster),
        shared(s),
        streams(R::open(args, row)),
        span(R::first(streams), R::kFirstBytes, Source::kSlots) {
    R::advance(streams, span.head);
  }

  /// Starts to read the row. False: the row is not read, and is done.
  template <class First>
  __device__ __forceinline__ bool begin() {
    if (threadIdx.x == 0 && span.rank == 0) R::mark(a, row);
    if (!R::active(a, row)) {
      if (threadIdx.x == 0 && span.rank == 0) R::skip(a, row);
      if constexpr (R::kEmits) clear_gradient();
      return false;
    }
    if constexpr (kCluster > 1) cluster_arrive();  // others may write here from now on
    if constexpr (R::kSweeps > 0) source.fetch(streams, span);
    if (threadIdx.x < 32) {
      if (threadIdx.x == 0) R::begin(a, row, shared.row);
      __syncwarp();
      if constexpr (First::kAnchors > 0) sample_anchors<First>();
    }
    __syncthreads();
    return true;
  }

  template <class P, class Next>
  __device__ __forceinline__ void phase() {
#pragma unroll 1
    for (int attempt = 0; attempt < 2; ++attempt) {
      if constexpr (P::kAnchors > 0) {
        if (attempt == 1) exact_anchors<P>();
      }
      const typename P::Operands o(shared.row);
      typedef Record<P::kSums, P::kTops> Rec;
      Rec record;
      record.clear();
      Record<0, P::kTops> edge;
      edge.clear();
      auto raise = [&](const float* tops, int place) {
#pragma unroll
        for (int k = 0; k < P::kTops; ++k) {
          const bool larger = tops[k] > record.tops[k];
          record.tops[k] = larger ? tops[k] : record.tops[k];
          record.places[k] = larger ? place : record.places[k];
        }
      };
      first_edges([&](int place) {
        float sums[P::kSums > 0 ? P::kSums : 1], tops[P::kTops > 0 ? P::kTops : 1];
        o.terms(P::element(streams, place), sums, tops);
#pragma unroll
        for (int k = 0; k < P::kSums; ++k) record.sums[k] = sums[k];
#pragma unroll
        for (int k = 0; k < P::kTops; ++k) edge.tops[k] = tops[k], edge.places[k] = span.head + place;
      });
      source.template sweep<P>(streams, span, [&](const typename R::Raw& raw, int first) {
        float vector_sums[P::kSums > 0 ? P::kSums : 1] = {};
#pragma unroll
        for (int i = 0; i < kWidth; ++i) {
          float sums[P::kSums > 0 ? P::kSums : 1], tops[P::kTops > 0 ? P::kTops : 1];
          o.terms(R::input(raw, i), sums, tops);
#pragma unroll
          for (int k = 0; k < P::kSums; ++k) vector_sums[k] += sums[k];
          raise(tops, span.head + first + i);
        }
#pragma unroll
        for (int k = 0; k < P::kSums; ++k) record.sums[k] += vector_sums[k];
      });
      record.merge_tops(edge);
      merge_block<kThreads>(record, reinterpret_cast<Rec*>(shared.warps));
      exchange(record);
      if (threadIdx.x < 32) {
        if (threadIdx.x == 0)
          shared.good = P::finish(a, row, shared.row, record.sums, record.tops, record.places);
        __syncwarp();
        if constexpr (Next::kAnchors > 0) {
          if (P::kAnchors == 0 || shared.good || attempt == 1) sample_anchors<Next>();
        }
      }
      __syncthreads();
      if (P::kAnchors == 0 || shared.good) return;
    }
  }

  /// The records of all blocks of the cluster merged, in thread 0 of each, in the order of their ranks.
  template <class Rec>
  __device__ __forceinline__ void exchange(Rec& record) {
    if constexpr (kCluster > 1) {
      Rec* ranks = reinterpret_cast<Rec*>(shared.ranks[exchanges % 2]);
      if (exchanges++ == 0) cluster_wait();  // all blocks have begun
      if (threadIdx.x < kCluster) store_remote(record, ranks + span.rank, threadIdx.x);
      cluster_arrive();
      cluster_wait();
      if (threadIdx.x == 0) {
        record = ranks[0];
#pragma unroll
        for (int i = 1; i < kCluster; ++i) record.merge(ranks[i]);
      }
    }
  }

  template <class F>
  __device__ __forceinline__ void first_edges(F f) const {
    if (span.rank == 0) edges<R>(span, f);
  }

  /// Anchors are the largest of the row's first elements: found by one warp of every block, which reads the
  /// same in all blocks of a cluster.
  template <class P>
  __device__ __forceinline__ void sample_anchors() {
    const typename P::Arguments o(shared.row);
    Record<0, P::kAnchors> record;
    record.clear();
    edges<R>(span, [&](int place) { raise<P>(record, o, P::element(streams, place)); });
    const int v = threadIdx.x;
    if (v < span.vectors) {
      typename R::Raw raw;
      P::template load<P::kKeep>(raw, streams, v, cache_policy(P::kKeep));
#pragma unroll
      for (int i = 0; i < kWidth; ++i) raise<P>(record, o, R::input(raw, i));
    }
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) record.merge(record.from_lane(mask));
    if (threadIdx.x == 0) P::set_anchors(shared.row, record.tops, false);
  }

  template <class P, class Rec>
  __device__ __forceinline__ static void raise(Rec& record, const typename P::Arguments& o,
                                               const typename R::Input& input) {
    float x[P::kAnchors];
    o.arguments(input, x);
#pragma unroll
    for (int k = 0; k < P::kAnchors; ++k) record.tops[k] = fmaxf(record.tops[k], x[k]);
  }

  /// ... or of all, in the rare row whose sample was far too low: small code counts.
  template <class P>
  __device__ __forceinline__ void exact_anchors() {
    const typename P::Arguments o(shared.row);
    typedef Record<0, P::kAnchors> Rec;
    Rec record;
    record.clear();
    edges<R>(span, [&](int place) { raise<P>(record, o, P::element(streams, place)); });
    sweep_memory<R, P, kThreads, 1>(streams, span, [&](const typename R::Raw& raw, int) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) raise<P>(record, o, R::input(raw, i));
    });
    merge_block<kThreads>(record, reinterpret_cast<Rec*>(shared.warps));
    if (threadIdx.x == 0) P::set_anchors(shared.row, record.tops, true);
    __syncthreads();
  }

  // ---- the gradient

  typedef typename R::Gradient G;
  static constexpr int kGradientBytes = sizeof(typename G::Bits);

  __device__ __forceinline__ void emit() {
    if (!shared.row.live) {
      clear_gradient();
      return;
    }
    char* gradient = address(a.tensors[R::kGradientTensor], row);
    char* vectors = gradient + span.head * kGradientBytes;
    const bool aligned = (reinterpret_cast<u64>(vectors) & 15) == 0;
    const u64 policy = cache_policy(R::Emit::kStore);
    const typename R::Emit o(shared.row);
    float old[R::kSparse > 0 ? R::kSparse : 1];
    if constexpr (R::kSparse > 0 && R::kAccumulates) {
#pragma unroll
      for (int k = 0; k < R::kSparse; ++k) {
        const int element = R::sparse_index(shared.row, k);
        if (inside(element) && span.owns(element)) old[k] = G::read(gradient + i64(element) * kGradientBytes);
      }
    }
    first_edges([&](int place) {
      char* p = vectors + i64(place) * kGradientBytes;
      float g = o.gradient(R::Emit::element(streams, place));
      if constexpr (R::kAccumulates) g += G::read(p);
      G::write(p, g);
    });
    source.template sweep<typename R::Emit>(streams, span, [&](const typename R::Raw& raw, int first) {
      char* place = vectors + i64(first) * kGradientBytes;
      float g[kWidth];
#pragma unroll
      for (int i = 0; i < kWidth; ++i) g[i] = o.gradient(R::input(raw, i));
      Vector<G, kWidth> out;
      if constexpr (R::kAccumulates) {
        out.template load<Keep::normal>(place, aligned, 0);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) g[i] += out.get(i);
      }
      out.set(g);
      out.template store<R::Emit::kStore>(place, aligned, policy);
    });
    if constexpr (R::kSparse > 0) {
#pragma unroll
      for (int k = 0; k < R::kSparse; ++k) {
        const int element = R::sparse_index(shared.row, k);
        if (!inside(element) || !span.owns(element)) continue;
        float v = R::sparse_value(shared.row, k);
        if constexpr (R::kAccumulates) v += old[k];
        G::write(gradient + i64(element) * kGradientBytes, v);
      }
    }
    clear_padding(gradient);
  }

  __device__ __forceinline__ static bool inside(int element) {
    return static_cast<unsigned>(element) < static_cast<unsigned>(R::kVocab);
  }

  __device__ __forceinline__ void clear_gradient() {
    if constexpr (!R::kAccumulates) {
      char* gradient = address(a.tensors[R::kGradientTensor], row);
      const i64 bytes = i64(R::kVocab) * kGradientBytes;
      const i64 head = (16 - (reinterpret_cast<u64>(gradient) & 15)) & 15;
      if (head >= bytes) {
        clear_bytes(gradient, bytes);
      } else {
        const i64 vectors = (bytes - head) / 16;
        clear_bytes(gradient, head);
        const unsigned zeros[4] = {0, 0, 0, 0};
#pragma unroll 1
        for (i64 v = span.rank * kThreads + threadIdx.x; v < vectors; v += kCluster * kThreads) {
          store16<Keep::normal>(gradient + head + 16 * v, zeros, 0);
        }
        clear_bytes(gradient + head + 16 * vectors, bytes - head - 16 * vectors);
      }
      clear_padding(gradient);
    }
  }
  __device__ __forceinline__ void clear_padding(char* gradient) {
    if constexpr (!R::kAccumulates)
      clear_bytes(gradient + i64(R::kVocab) * kGradientBytes, a.head.gradient_padding);
  }
  __device__ __forceinline__ static void clear_bytes(char* p, i64 count) {
#pragma unroll 1
    for (i64 i = threadIdx.x; i < count; i += kThreads) p[i] = 0;
  }
};

}  // namespace lossc::cuda
