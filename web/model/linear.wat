;; A linear layer in WebAssembly: out[t][o] = sum over i of x[t][i] * weight[o][i], four numbers at a time.
;; All of it lies in one memory, as float32. x: [n x in], weight: [numOut x in], out: [n x numOut]; in and numOut are
;; multiples of four. Addresses and `row` (4 x in) are in bytes.
(module
  (memory (import "page" "memory") 1)

  ;; The sum of the four numbers in v.
  (func $sum (param $v v128) (result f32)
    (f32.add
      (f32.add (f32x4.extract_lane 0 (local.get $v)) (f32x4.extract_lane 1 (local.get $v)))
      (f32.add (f32x4.extract_lane 2 (local.get $v)) (f32x4.extract_lane 3 (local.get $v)))))

  (func (export "linear")
    (param $x i32) (param $weight i32) (param $out i32) (param $n i32) (param $row i32) (param $numOut i32)
    (local $o i32) (local $t i32) (local $i i32) (local $here i32) (local $w0 i32) (local $w1 i32) (local $w2 i32) (local $w3 i32)
    (local $v v128) (local $a v128) (local $b v128) (local $c v128) (local $d v128)

    (loop $outputs                                        ;; four outputs at a time: rows w0 to w3 of the weights
      (local.set $w0 (i32.add (local.get $weight) (i32.mul (local.get $o) (local.get $row))))
      (local.set $w1 (i32.add (local.get $w0) (local.get $row)))
      (local.set $w2 (i32.add (local.get $w1) (local.get $row)))
      (local.set $w3 (i32.add (local.get $w2) (local.get $row)))

      (local.set $t (i32.const 0))
      (loop $tokens                                       ;; all tokens while these rows are near
        (local.set $a (v128.const f32x4 0 0 0 0))
        (local.set $b (local.get $a))
        (local.set $c (local.get $a))
        (local.set $d (local.get $a))
        (local.set $here (i32.add (local.get $x) (i32.mul (local.get $t) (local.get $row))))

        (local.set $i (i32.const 0))
        (loop $inputs                                     ;; four numbers of x, times four of each row
          (local.set $v (v128.load (i32.add (local.get $here) (local.get $i))))
          (local.set $a (f32x4.add (local.get $a) (f32x4.mul (local.get $v) (v128.load (i32.add (local.get $w0) (local.get $i))))))
          (local.set $b (f32x4.add (local.get $b) (f32x4.mul (local.get $v) (v128.load (i32.add (local.get $w1) (local.get $i))))))
          (local.set $c (f32x4.add (local.get $c) (f32x4.mul (local.get $v) (v128.load (i32.add (local.get $w2) (local.get $i))))))
          (local.set $d (f32x4.add (local.get $d) (f32x4.mul (local.get $v) (v128.load (i32.add (local.get $w3) (local.get $i))))))
          (br_if $inputs (i32.lt_u (local.tee $i (i32.add (local.get $i) (i32.const 16))) (local.get $row))))

        (local.set $here                                  ;; out[t][o]
          (i32.add (local.get $out)
            (i32.shl (i32.add (i32.mul (local.get $t) (local.get $numOut)) (local.get $o)) (i32.const 2))))
        (f32.store          (local.get $here) (call $sum (local.get $a)))
        (f32.store offset=4 (local.get $here) (call $sum (local.get $b)))
        (f32.store offset=8 (local.get $here) (call $sum (local.get $c)))
        (f32.store offset=12 (local.get $here) (call $sum (local.get $d)))
        (br_if $tokens (i32.lt_u (local.tee $t (i32.add (local.get $t) (i32.const 1))) (local.get $n))))

      (br_if $outputs (i32.lt_u (local.tee $o (i32.add (local.get $o) (i32.const 4))) (local.get $numOut))))))
