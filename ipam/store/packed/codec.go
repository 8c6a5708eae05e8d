package packed

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"net/netip"
	"reflect"
	"strconv"
	"sync"
	"time"
)

// A packed value has no type in it: it is unpacked into the type that it was packed from.
//
//   - A struct is its fields that are not zero, each with its number before it, and a 0.
//   - A slice or a map is 0 where it is nil, else its length plus one, and its elements.
//   - A pointer is 0 where it is nil, else 1 and what it points to.
//   - A string is what appendString says.
//
// Fields that are not exported are lost, so that types which have any have to marshal themselves.

// shared are the names of the fields whose values many objects have in common. Those values are kept once,
// for as long as the process runs, so that no field belongs here whose values come and go.
var shared = map[string]bool{
	"Namespace": true, "NodeName": true, "APIVersion": true, "Kind": true, "Finalizers": true,
	"Phase": true, "HostIP": true, "NodeIP": true, "Type": true, "Status": true, "Reason": true,
	"WhenDeleted": true, "WhenScaled": true, "Failover": true,
}

// How a string is packed: the lowest bits of the number before it. The others are its length, its number
// among the shared ones, or its value.
const (
	asText = iota
	asShared
	asUUID
	asDecimal
	asIPv4
	stringForms = 8
)

// vocabulary numbers the shared strings.
type vocabulary struct {
	mu sync.RWMutex
	// numbers and words are each other's inverse. They only grow.
	numbers map[string]uint64
	words   []string
}

// words are the shared strings of the process.
var words = &vocabulary{numbers: map[string]uint64{}}

func (v *vocabulary) number(s string) uint64 {
	v.mu.RLock()
	n, ok := v.numbers[s]
	v.mu.RUnlock()
	if ok {
		return n
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	if n, ok := v.numbers[s]; ok {
		return n
	}
	// What it is cut from need not be kept.
	s = string([]byte(s))
	n = uint64(len(v.words))
	v.numbers[s], v.words = n, append(v.words, s)
	return n
}

func (v *vocabulary) word(n uint64) string {
	v.mu.RLock()
	defer v.mu.RUnlock()
	return v.words[n]
}

var (
	timeType        = reflect.TypeFor[time.Time]()
	marshalerType   = reflect.TypeFor[json.Marshaler]()
	unmarshalerType = reflect.TypeFor[json.Unmarshaler]()
)

// field is one of a struct that is packed.
type field struct {
	index  int
	shared bool
}

// shape is what is known of a type.
type shape struct {
	// own: it marshals itself.
	own    bool
	fields []field
}

// shapes are those of all types that were met. Key: reflect.Type. Value: *shape.
var shapes sync.Map

func shapeOf(t reflect.Type) *shape {
	if s, ok := shapes.Load(t); ok {
		return s.(*shape)
	}
	s := &shape{}
	if t.Kind() == reflect.Struct {
		// metav1.Time is packed as the time in it.
		wrapsTime := t.NumField() == 1 && t.Field(0).Type == timeType
		s.own = !wrapsTime && t.Implements(marshalerType) && reflect.PointerTo(t).Implements(unmarshalerType)
		for i := range t.NumField() {
			if f := t.Field(i); f.IsExported() {
				s.fields = append(s.fields, field{i, shared[f.Name]})
			}
		}
	}
	shapes.Store(t, s)
	return s
}

// appendValue packs a value. once: it may be one of the shared strings, or has them in it.
func appendValue(b []byte, v reflect.Value, once bool) ([]byte, error) {
	t := v.Type()
	switch v.Kind() {
	case reflect.String:
		return appendString(b, v.String(), once), nil
	case reflect.Bool:
		if v.Bool() {
			return append(b, 1), nil
		}
		return append(b, 0), nil
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return binary.AppendVarint(b, v.Int()), nil
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		return binary.AppendUvarint(b, v.Uint()), nil
	case reflect.Float32, reflect.Float64:
		return binary.AppendUvarint(b, math.Float64bits(v.Float())), nil
	case reflect.Pointer:
		if v.IsNil() {
			return append(b, 0), nil
		}
		return appendValue(append(b, 1), v.Elem(), once)
	case reflect.Slice:
		if v.IsNil() {
			return append(b, 0), nil
		}
		b = binary.AppendUvarint(b, uint64(v.Len())+1)
		var err error
		for i := range v.Len() {
			if b, err = appendValue(b, v.Index(i), once); err != nil {
				return b, err
			}
		}
		return b, nil
	case reflect.Map:
		if v.IsNil() {
			return append(b, 0), nil
		}
		b = binary.AppendUvarint(b, uint64(v.Len())+1)
		for i := v.MapRange(); i.Next(); {
			var err error
			if b, err = appendValue(b, i.Key(), once); err != nil {
				return b, err
			}
			if b, err = appendValue(b, i.Value(), once); err != nil {
				return b, err
			}
		}
		return b, nil
	case reflect.Struct:
		if t == timeType {
			at := v.Interface().(time.Time)
			return binary.AppendUvarint(binary.AppendVarint(b, at.Unix()), uint64(at.Nanosecond())), nil
		}
		s := shapeOf(t)
		if s.own {
			data, err := v.Interface().(json.Marshaler).MarshalJSON()
			return appendString(b, string(data), false), err
		}
		for _, f := range s.fields {
			value := v.Field(f.index)
			if value.IsZero() {
				continue
			}
			b = binary.AppendUvarint(b, uint64(f.index)+1)
			var err error
			if b, err = appendValue(b, value, f.shared); err != nil {
				return b, err
			}
		}
		return append(b, 0), nil
	}
	return b, fmt.Errorf("a value of type %s can't be packed", t)
}

func appendString(b []byte, s string, once bool) []byte {
	form := func(form int, n uint64) []byte { return binary.AppendUvarint(b, n*stringForms+uint64(form)) }
	if once {
		return form(asShared, words.number(s))
	}
	if n, err := strconv.ParseUint(s, 10, 56); err == nil && (s[0] != '0' || s == "0") {
		return form(asDecimal, n)
	}
	if id, ok := parseUUID(s); ok {
		return append(form(asUUID, 0), id[:]...)
	}
	if len(s) >= len("0.0.0.0") && len(s) <= len("255.255.255.255") {
		if a, err := netip.ParseAddr(s); err == nil && a.Is4() {
			ip := a.As4()
			return append(form(asIPv4, 0), ip[:]...)
		}
	}
	return append(form(asText, uint64(len(s))), s...)
}

// parseUUID reads a UUID that is written as Kubernetes writes them, and no other.
func parseUUID(s string) (id [16]byte, ok bool) {
	if len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return id, false
	}
	for i := range len(s) {
		if s[i] >= 'A' && s[i] <= 'F' {
			return id, false
		}
	}
	digits := s[:8] + s[9:13] + s[14:18] + s[19:23] + s[24:]
	_, err := hex.Decode(id[:], []byte(digits))
	return id, err == nil
}

func formatUUID(id string) string {
	digits := hex.AppendEncode(make([]byte, 0, 32), []byte(id))
	s := make([]byte, 0, 36)
	for i, end := range []int{8, 12, 16, 20, 32} {
		if i > 0 {
			s = append(s, '-')
		}
		s = append(s, digits[len(s)-i:end]...)
	}
	return string(s)
}

// reader unpacks. Strings that it reads are cut from what is packed. What was not packed here makes it
// panic.
type reader struct{ rest string }

func (r *reader) uvarint() uint64 {
	var n uint64
	for shift := 0; ; shift += 7 {
		c := r.rest[0]
		r.rest = r.rest[1:]
		n |= uint64(c&0x7f) << shift
		if c < 0x80 {
			return n
		}
	}
}

func (r *reader) varint() int64 {
	n := r.uvarint()
	return int64(n>>1) ^ -int64(n&1)
}

func (r *reader) take(n int) string {
	s := r.rest[:n]
	r.rest = r.rest[n:]
	return s
}

func (r *reader) string() string {
	n := r.uvarint()
	switch form, n := n%stringForms, n/stringForms; form {
	case asShared:
		return words.word(n)
	case asUUID:
		return formatUUID(r.take(16))
	case asDecimal:
		return strconv.FormatUint(n, 10)
	case asIPv4:
		return netip.AddrFrom4([4]byte([]byte(r.take(4)))).String()
	default:
		return r.take(int(n))
	}
}

// value unpacks into v, which is zero.
func (r *reader) value(v reflect.Value) {
	switch v.Kind() {
	case reflect.String:
		v.SetString(r.string())
	case reflect.Bool:
		v.SetBool(r.take(1) == "\x01")
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(r.varint())
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(r.uvarint())
	case reflect.Float32, reflect.Float64:
		v.SetFloat(math.Float64frombits(r.uvarint()))
	case reflect.Pointer:
		if r.take(1) == "\x01" {
			v.Set(reflect.New(v.Type().Elem()))
			r.value(v.Elem())
		}
	case reflect.Slice:
		if n := int(r.uvarint()); n > 0 {
			v.Set(reflect.MakeSlice(v.Type(), n-1, n-1))
			for i := range n - 1 {
				r.value(v.Index(i))
			}
		}
	case reflect.Map:
		if n := int(r.uvarint()); n > 0 {
			t := v.Type()
			v.Set(reflect.MakeMapWithSize(t, n-1))
			for range n - 1 {
				key, value := reflect.New(t.Key()).Elem(), reflect.New(t.Elem()).Elem()
				r.value(key)
				r.value(value)
				v.SetMapIndex(key, value)
			}
		}
	case reflect.Struct:
		r.fields(v)
	}
}

func (r *reader) fields(v reflect.Value) {
	t := v.Type()
	if t == timeType {
		seconds := r.varint()
		v.Set(reflect.ValueOf(time.Unix(seconds, int64(r.uvarint()))))
		return
	}
	if shapeOf(t).own {
		if err := v.Addr().Interface().(json.Unmarshaler).UnmarshalJSON([]byte(r.string())); err != nil {
			panic(fmt.Sprintf("unpack a %s: %v", t, err))
		}
		return
	}
	for {
		n := int(r.uvarint())
		if n == 0 {
			return
		}
		r.value(v.Field(n - 1))
	}
}
