// One row of a region, worked on by one block or a cluster of blocks: which thread holds which elements, the
// order of sweeps, the reductions between them, and the gradient. What is computed stands in the generated
// region R:
//
//   R::kWidth                    elements that fill 16 bytes of the row's narrowest tensor
//   R::Row                       values of the row, in shared memory
//   R::Raw, R::Input             kWidth elements of every tensor that is swept, as loaded; one, as fp32
//   R::fetch                     begins to copy kWidth elements into shared memory, as they stand in Raw
//   R::Streams                   where the row begins in every tensor: open, first (the narrowest), aligned
//   R::active, R::skip, R::begin what is computed before the sweeps
//   R::Phase0, ...               one sweep: anchors, terms, finish
//   R::Emit                      the gradient of an element
//
// A row is cut at multiples of 16 bytes of its narrowest tensor: whole vectors, and loose elements before the
// first and behind the last of them. A row whose tensors do not all have their vectors at multiples of 16
// bytes is loose as a whole. Vectors are dealt to threads so that a warp begins at a line of 128 bytes, loose
// elements one by one.

namespace lossc::cuda {

template <class R, int kBlock, int kBlocks>
struct Span {
  static constexpr int kWidth = R::kWidth, kThreads = kBlock * kBlocks;
  int head;  ///< loose elements before the first vector
  int vectors;
  int loose;   ///< all loose elements
  int lead;    ///< vectors between the line's beginning and the first vector
  int thread;  ///< this one, of all that work on the row

  __device__ __forceinline__ Span(const typename R::Streams& streams, int slots) {
    constexpr int kBytes = 16 / kWidth;
    const u64 place = reinterpret_cast<u64>(R::first(streams));
    head = static_cast<int>((0 - place) & 15) / kBytes;
    if (head > R::kVocab) head = R::kVocab;
    vectors = (R::kVocab - head) / kWidth;
    if (!R::aligned(streams, head)) head = vectors = 0;
    loose = R::kVocab - vectors * kWidth;
    lead = static_cast<int>((place + head * kBytes) & 127) / 16;
    if (vectors + lead > slots) lead = 0;
    thread = threadIdx.x;
    if constexpr (kBlocks > 1) thread += blockIdx.x % kBlocks * kBlock;
  }
  /// The vector of this thread in round k; outside of [0, vectors) there is none.
  __device__ __forceinline__ int vector(int k) const { return k * kThreads + thread - lead; }
  __device__ __forceinline__ bool has(int v) const {
    return static_cast<unsigned>(v) < static_cast<unsigned>(vectors);
  }
  __device__ __forceinline__ int first_element(int v) const { return head + v * kWidth; }
  __device__ __forceinline__ int loose_element(int i) const { return i < head ? i : i + vectors * kWidth; }
  /// Whether this thread handles the element.
  __device__ __forceinline__ bool owns(int element) const {
    const int inner = element - head, behind = inner - vectors * kWidth;
    int owner = inner / kWidth + lead;
    if (inner < 0) owner = element;
    if (behind >= 0) owner = head + behind;
    return owner % kThreads == thread;
  }
};

// ---- where the elements of a row come from
//
// What is done with them has two members: vector(raw, first element) and element(input, element).

template <class P, class Streams, class S, class F>
LOSSC_INLINE void sweep_loose(const Streams& streams, const S& span, F& f) {
#pragma unroll 1
  for (int i = span.thread; i < span.loose; i += S::kThreads) {
    const int element = span.loose_element(i);
    f.element(P::read(streams, element), element);
  }
}

/// The row is loaded once and stays in the shared memory of a block, or is dealt to that of a cluster of
/// blocks. A thread copies what it will read itself, without a register in between, so nobody waits for
/// others.
template <class R, int kBlock, int kVectors, int kBlocks = 1>
struct Resident {
  static constexpr int kThreads = kBlock, kCluster = kBlocks;
  static constexpr int kSlots = kThreads * kVectors * kCluster;
  static constexpr bool kLong = false;  ///< whether a thread sums many elements
  static constexpr int kPieces = sizeof(typename R::Raw) / 16;

  LOSSC_INLINE uint4* slot(int k) {
    extern __shared__ uint4 row_slots[];
    return row_slots + k * (kPieces * kThreads) + threadIdx.x;
  }
  template <class P, class S>
  __device__ __forceinline__ void fetch(const typename R::Streams& streams, const S& span) {
#pragma unroll 1
    for (int k = 0; k < kVectors; ++k) {
      const int v = span.vector(k);
      if (span.has(v)) R::template fetch<kThreads>(slot(k), streams, span.first_element(v));
    }
  }
  template <class P, class S, class F>
  __device__ __forceinline__ void sweep(const typename R::Streams& streams, const S& span, F& f) {
    sweep_loose<P>(streams, span, f);
    wait_for_copies();
#pragma unroll 1
    for (int k = 0; k < kVectors; ++k) {
      const int v = span.vector(k);
      if (!span.has(v)) continue;
      typename R::Raw raw;
#pragma unroll
      for (int i = 0; i < kPieces; ++i) reinterpret_cast<uint4*>(&raw)[i] = slot(k)[i * kThreads];
      f.vector(raw, span.first_element(v));
    }
  }
};

/// Every sweep reads the row again; hints keep it in the second-level cache until the last one. A thread has
/// some vectors on their way at once, the first of them from before the sweep begins.
template <class R, int kBlock, int kAhead>
struct Streaming {
  static constexpr int kThreads = kBlock, kCluster = 1;
  static constexpr int kSlots = 0x7fffffff;
  static constexpr bool kLong = true;
  typename R::Raw raw[kAhead];

  template <class P, class S>
  __device__ __forceinline__ void fetch(const typename R::Streams& streams, const S& span) {
    load<P>(streams, span, span.vector(0), cache_policy(P::kKeep));
  }
  template <class P, class S, class F>
  __device__ __forceinline__ void sweep(const typename R::Streams& streams, const S& span, F& f) {
    const u64 policy = cache_policy(P::kKeep);
    sweep_loose<P>(streams, span, f);
#pragma unroll 1
    for (int v = span.vector(0); v < span.vectors; v += kThreads * kAhead) {
#pragma unroll
      for (int u = 0; u < kAhead; ++u) {
        const int w = v + u * kThreads;
        if (span.has(w)) f.vector(raw[u], span.first_element(w));
      }
      load<P>(streams, span, v + kThreads * kAhead, policy);
    }
  }
  template <class P, class S>
  __device__ __forceinline__ void load(const typename R::Streams& streams, const S& span, int v, u64 policy) {
#pragma unroll
    for (int u = 0; u < kAhead; ++u) {
      const int w = v + u * kThreads;
      if (span.has(w)) P::template load<P::kKeep>(raw[u], streams, span.first_element(w), policy);
    }
  }
};

// ---- what sweeps gather

/// Sums are added; of equal tops the one at the smallest place stays.
template <int kSums, int kTops, bool kPlaced = true>
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
  /// Over the lanes of a warp, in every lane.
  __device__ __forceinline__ void merge_warp() {
#pragma unroll 1
    for (int mask = 16; mask > 0; mask /= 2) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], mask);
#pragma unroll
      for (int i = 0; i < kTops; ++i) {
        const int place = kPlaced ? __shfl_xor_sync(0xffffffffu, places[i], mask) : 0;
        raise(i, __shfl_xor_sync(0xffffffffu, tops[i], mask), place);
      }
    }
  }
  __device__ __forceinline__ void merge(const Record& o) {
#pragma unroll
    for (int i = 0; i < kSums; ++i) sums[i] += o.sums[i];
#pragma unroll
    for (int i = 0; i < kTops; ++i) raise(i, o.tops[i], o.places[i]);
  }
  __device__ __forceinline__ void raise(int i, float top, int place) {
    if constexpr (kPlaced) {
      if (top > tops[i] || (top == tops[i] && place < places[i])) {
        tops[i] = top;
        places[i] = place;
      }
    } else {
      tops[i] = fmaxf(tops[i], top);
    }
  }
};

/// All threads' records merged, in thread 0. `warps` may be written again only after a barrier of the
/// caller's.
template <int kThreads, class Rec>
LOSSC_INLINE void merge_block(Rec& record, Rec* warps) {
  record.merge_warp();
  constexpr int kWarps = kThreads / 32;
  if constexpr (kWarps > 1) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    if (lane == 0) warps[warp] = record;
    __syncthreads();
    if (warp == 0) {
      record.clear();
      if (lane < kWarps) record = warps[lane];
      record.merge_warp();
    }
  }
}

/// The sums and tops of one thread in a phase P. If it sums many elements, those of a vector come together
/// first, which takes fewer roundings at the size of the total, and more registers.
template <class R, class P, bool kLong>
struct Accumulation {
  const typename P::Operands o;
  Record<P::kSums, P::kTops> record;

  __device__ __forceinline__ explicit Accumulation(const typename R::Row& row) : o(row) { record.clear(); }

  __device__ __forceinline__ void vector(const typename R::Raw& raw, int first) {
    float sums[P::kSums > 0 ? P::kSums : 1] = {};
#pragma unroll
    for (int i = 0; i < R::kWidth; ++i) add(R::input(raw, i), first + i, kLong ? sums : record.sums);
    if constexpr (kLong) {
#pragma unroll
      for (int k = 0; k < P::kSums; ++k) record.sums[k] += sums[k];
    }
  }
  __device__ __forceinline__ void element(const typename R::Input& x, int place) {
    add(x, place, record.sums);
  }

  __device__ __forceinline__ void add(const typename R::Input& x, int place, float* total) {
    float sums[P::kSums > 0 ? P::kSums : 1], tops[P::kTops > 0 ? P::kTops : 1];
    o.terms(x, sums, tops);
#pragma unroll
    for (int k = 0; k < P::kSums; ++k) total[k] += sums[k];
#pragma unroll
    for (int k = 0; k < P::kTops; ++k) {
      if (tops[k] > record.tops[k]) {
        record.tops[k] = tops[k];
        record.places[k] = place;
      }
    }
  }
};

/// The gradient of one thread's elements. Elements are read before they are written: the gradient may stand
/// where the logits do.
template <class R>
struct GradientStores {
  typedef typename R::Gradient G;
  const typename R::Emit o;
  char* const row;
  const u64 policy;

  __device__ __forceinline__ GradientStores(const typename R::Row& r, char* gradient)
      : o(r), row(gradient), policy(cache_policy(R::Emit::kStore)) {}
  __device__ __forceinline__ char* place(int element) const {
    return row + i64(element) * int(sizeof(typename G::Bits));
  }

  __device__ __forceinline__ void vector(const typename R::Raw& raw, int first) {
    Vector<G, R::kWidth> out;
    float g[R::kWidth];
#pragma unroll
    for (int i = 0; i < R::kWidth; ++i) g[i] = o.gradient(R::input(raw, i));
    if constexpr (R::kAccumulates) {
      out.template load<Keep::normal>(place(first), 0);
#pragma unroll
      for (int i = 0; i < R::kWidth; ++i) g[i] += out.get(i);
    }
    out.set(g);
    out.template store<R::Emit::kStore>(place(first), policy);
  }
  __device__ __forceinline__ void element(const typename R::Input& x, int element) {
    float g = o.gradient(x);
    if constexpr (R::kAccumulates) g += G::read(place(element));
    G::write(place(element), g);
  }
};

/// Zeros, 16 bytes a store where they fit.
LOSSC_INLINE void clear_bytes(char* p, i64 count, int thread, int threads) {
  i64 head = -reinterpret_cast<i64>(p) & 15;
  if (head > count) head = count;
  const i64 inner = (count - head) / 16 * 16;
  const unsigned zeros[4] = {0, 0, 0, 0};
#pragma unroll 1
  for (i64 i = 16 * thread; i < inner; i += 16 * threads) store16<Keep::normal>(p + head + i, zeros, 0);
#pragma unroll 1
  for (i64 i = thread; i < count - inner; i += threads) p[i < head ? i : i + inner] = 0;
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
  static constexpr bool kPhase = false;
  static constexpr int kAnchors = 0;
};
/// The sweep of a phase, or of the gradient behind the last one.
template <class R, class P>
struct SweepOf {
  typedef P Sweep;
};
template <class R>
struct SweepOf<R, NoPhase> {
  typedef typename R::Emit Sweep;
};

// ---- the row's program: begin, the phases, emit

template <class R, class Source, class Args>
struct RowProgram {
  static constexpr int kThreads = Source::kThreads, kCluster = Source::kCluster;
  static constexpr int kWarps = kThreads / 32;

  struct Shared {
    typename R::Row row;
    int good;
    Record<R::kMaxSums, R::kMaxTops> warps[kWarps];
    /// In turn, so that none is written while it is read.
    Record<R::kMaxSums, R::kMaxTops> ranks[2][kCluster];
  };

  const Args& a;
  i64 row;
  Shared& shared;
  typename R::Streams streams;
  Span<R, kThreads, kCluster> span;
  Source source;
  int exchanges = 0;

  __device__ __forceinline__ RowProgram(const Args& args, Shared& s)
      : a(args),
        row(args.head.row_begin + blockIdx.x / kCluster),
        shared(s),
        streams(R::open(args, row)),
        span(streams, Source::kSlots) {}

  /// Computes the addresses anew: through a sweep they would stand in registers for nothing.
  __device__ __forceinline__ void reopen() {
    asm volatile("" : "+l"(row));
    streams = R::open(a, row);
  }

  /// Starts to read the row. False: the row is not read.
  template <class First>
  __device__ __forceinline__ bool begin() {
    if (span.thread == 0) R::mark(a, row);
    if (!R::active(a, row)) {
      if (span.thread == 0) R::skip(a, row);
      return false;
    }
    if constexpr (kCluster > 1) cluster_arrive();  // others may write here from now on
    if constexpr (R::kSweeps > 0) fetch<First>();
    if (threadIdx.x < 32) {
      if (threadIdx.x == 0) R::begin(a, row, shared.row);
      __syncwarp();
      if constexpr (First::kAnchors > 0) sample_anchors<First>();
    }
    __syncthreads();
    return true;
  }

  /// What the sweep of P reads first is on its way from here on; a row that is held is read once.
  template <class P>
  __device__ __forceinline__ void fetch() {
    source.template fetch<typename SweepOf<R, P>::Sweep>(streams, span);
  }

  template <class P, class Next>
  __device__ __forceinline__ void phase() {
#pragma unroll 1
    for (bool last = P::kAnchors == 0;; last = true) {
      Accumulation<R, P, Source::kLong> f(shared.row);
      source.template sweep<P>(streams, span, f);
      if constexpr (Source::kLong && (R::kEmits || Next::kPhase)) fetch<Next>();
      merge_block<kThreads>(f.record, reinterpret_cast<decltype(f.record)*>(shared.warps));
      exchange(f.record);
      if (threadIdx.x == 0) {
        shared.good = P::good(shared.row, f.record.sums) || last;
        if (shared.good) P::finish(a, row, shared.row, f.record.sums, f.record.tops, f.record.places);
      }
      if constexpr (P::kAnchors > 0) {
        __syncthreads();
        if (!shared.good) {
          find_anchors<P>();
          if constexpr (Source::kLong) fetch<P>();
          continue;
        }
      }
      break;
    }
    if constexpr (Next::kAnchors > 0) {
      if (threadIdx.x < 32) sample_anchors<Next>();
    }
    // An element that was picked may be overwritten when all blocks have it.
    if constexpr (kCluster > 1 && P::kPicks) {
      cluster_arrive();
      cluster_wait();
    }
    if constexpr (P::kAnchors == 0 || Next::kAnchors > 0) __syncthreads();
  }

  /// The records of all blocks of the cluster merged, in thread 0 of each, in the order of their ranks.
  template <class Rec>
  __device__ __forceinline__ void exchange(Rec& record) {
    if constexpr (kCluster > 1) {
      Rec* ranks = reinterpret_cast<Rec*>(shared.ranks[exchanges % 2]);
      if (exchanges++ == 0) cluster_wait();  // all blocks have begun
      if (threadIdx.x < kCluster) store_remote(record, ranks + blockIdx.x % kCluster, threadIdx.x);
      cluster_arrive();
      cluster_wait();
      if (threadIdx.x == 0) {
        record = ranks[0];
#pragma unroll 1
        for (int i = 1; i < kCluster; ++i) record.merge(ranks[i]);
      }
    }
  }

  /// Anchors are the largest of a sample, taken by one warp at four places of the row, the same in all blocks
  /// of a cluster.
  template <class P>
  __device__ __forceinline__ void sample_anchors() {
    Record<0, P::kAnchors, false> record;
    record.clear();
    const typename P::Arguments o(shared.row);
    constexpr int kStep = R::kVocab > 128 ? R::kVocab / 4 : 32;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int element = threadIdx.x + i * kStep;
      if (element < R::kVocab) raise<P>(record, o, element);
    }
    record.merge_warp();
    if (threadIdx.x == 0) P::set_anchors(shared.row, record.tops, false);
  }
  template <class P, class Rec>
  __device__ __forceinline__ void raise(Rec& record, const typename P::Arguments& o, int element) const {
    float x[P::kAnchors];
    o.arguments(P::read(streams, element), x);
#pragma unroll
    for (int k = 0; k < P::kAnchors; ++k) record.tops[k] = fmaxf(record.tops[k], x[k]);
  }

  /// For the rare row whose sample was far too low: anchors of all of the row. Small code counts; every block
  /// of a cluster does it all.
  template <class P>
  __device__ __forceinline__ void find_anchors() {
    Record<0, P::kAnchors, false> anchors;
    anchors.clear();
    const typename P::Arguments o(shared.row);
#pragma unroll 1
    for (int element = threadIdx.x; element < R::kVocab; element += kThreads) raise<P>(anchors, o, element);
    merge_block<kThreads>(anchors, reinterpret_cast<decltype(anchors)*>(shared.warps));
    if (threadIdx.x == 0) P::set_anchors(shared.row, anchors.tops, true);
    __syncthreads();
  }

  /// Writes the gradient, zeros for a row that has none and behind the vocabulary.
  __device__ __forceinline__ void emit(bool active) {
    typedef typename R::Gradient G;
    reopen();
    char* gradient = streams.gradient;
    const bool live = active && shared.row.live;
    if (live) {
      GradientStores<R> stores(shared.row, gradient);
      float old[R::kSparse > 0 ? R::kSparse : 1];
      if constexpr (R::kSparse > 0 && R::kAccumulates) {
#pragma unroll
        for (int k = 0; k < R::kSparse; ++k) {
          const int element = R::sparse_index(shared.row, k);
          if (mine(element)) old[k] = G::read(stores.place(element));
        }
      }
      source.template sweep<typename R::Emit>(streams, span, stores);
      if constexpr (R::kSparse > 0) {
#pragma unroll
        for (int k = 0; k < R::kSparse; ++k) {
          const int element = R::sparse_index(shared.row, k);
          if (!mine(element)) continue;
          float v = R::sparse_value(shared.row, k);
          if constexpr (R::kAccumulates) v += old[k];
          G::write(stores.place(element), v);
        }
      }
    }
    if constexpr (!R::kAccumulates) {
      constexpr i64 kBytes = i64(R::kVocab) * int(sizeof(typename G::Bits));
      const i64 written = live ? kBytes : 0;
      clear_bytes(gradient + written, kBytes + a.head.gradient_padding - written, span.thread,
                  kThreads * kCluster);
    }
  }
  /// Whether this thread writes the element; it did so in the sweep.
  __device__ __forceinline__ bool mine(int element) const {
    return static_cast<unsigned>(element) < static_cast<unsigned>(R::kVocab) && span.owns(element);
  }
};

}  // namespace lossc::cuda
