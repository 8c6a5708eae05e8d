// Copyright The fixedip Authors
// SPDX-License-Identifier: Apache-2.0

package packed

import "encoding/binary"

// Writer encodes texts and numbers one after another: the length of a text as a varint and the text, and a number as a varint.
type Writer []byte

// Text appends a text.
func (w *Writer) Text(t string) {
	*w = append(binary.AppendUvarint(*w, uint64(len(t))), t...)
}

// Number appends a number.
func (w *Writer) Number(n int64) { *w = binary.AppendVarint(*w, n) }

// Reader is the part of the result of a Writer that has not been read yet. Read the values in the order in which they were
// written.
type Reader string

// Text returns the next text, which refers to the memory of the Reader.
func (r *Reader) Text() string {
	length := r.uvarint()
	t := (*r)[:length]
	*r = (*r)[length:]
	return string(t)
}

// Number returns the next number.
func (r *Reader) Number() int64 {
	u := r.uvarint()
	n := int64(u >> 1)
	if u&1 != 0 {
		n = ^n
	}
	return n
}

// uvarint is binary.Uvarint for a text.
func (r *Reader) uvarint() (n uint64) {
	for i, shift := 0, 0; ; i, shift = i+1, shift+7 {
		b := (*r)[i]
		n |= uint64(b&0x7f) << shift
		if b < 0x80 {
			*r = (*r)[i+1:]
			return n
		}
	}
}
