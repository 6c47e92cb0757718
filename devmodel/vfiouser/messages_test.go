package vfiouser

import (
	"bytes"
	"encoding/hex"
	"reflect"
	"strings"
	"testing"
)

// message is what every wire struct can do.
type message interface {
	encode([]byte)
	decode([]byte)
}

// TestGoldenMessages pins every offset of every message to bytes written out by hand from sections 1 to 4 of the reference.
func TestGoldenMessages(t *testing.T) {
	for _, c := range []struct {
		name string
		msg  message
		want string
	}{
		{"header", &Header{ID: 0x0102, Command: CmdRegionRead, Size: 0x20, Flags: 0x11, Errno: 0x16}, "0201 0900 20000000 11000000 16000000"},
		{"VERSION", &Version{Major: 1, Minor: 2}, "0100 0200"},
		{"DMA_MAP", &DMAMap{ArgSize: 32, Flags: 3, Offset: 0x80000000, IOVA: 0x100000000, Size: 0x1000}, "20000000 03000000 0000008000000000 0000000001000000 0010000000000000"},
		{"DMA_UNMAP", &DMAUnmap{ArgSize: 24, Flags: 2, IOVA: 0xfef00000, Size: 0xffffffff01100000}, "18000000 02000000 0000f0fe00000000 00001001ffffffff"},
		{"GET_INFO", &DeviceInfo{ArgSize: 16, Flags: 3, Regions: 9, IRQs: 5}, "10000000 03000000 09000000 05000000"},
		{
			"GET_REGION_INFO", &RegionInfo{ArgSize: 32, Flags: 3, Index: 7, CapOffset: 0x40, Size: 0x1000, Offset: 0x2000},
			"20000000 03000000 07000000 40000000 0010000000000000 0020000000000000",
		},
		{"GET_IRQ_INFO", &IRQInfo{ArgSize: 16, Flags: 1, Index: 2, Count: 2048}, "10000000 01000000 02000000 00080000"},
		{"SET_IRQS", &SetIRQs{ArgSize: 20, Flags: IRQDataEventfd | IRQActionTrigger, Index: 2, Start: 3, Count: 16}, "14000000 24000000 02000000 03000000 10000000"},
		{"REGION access", &RegionAccess{Offset: 0x1820, Region: 4, Count: 8}, "2018000000000000 04000000 08000000"},
	} {
		want, err := hex.DecodeString(strings.ReplaceAll(c.want, " ", ""))
		if err != nil {
			t.Fatal(err)
		}
		got := make([]byte, len(want))
		c.msg.encode(got)
		if !bytes.Equal(got, want) {
			t.Errorf("%s encodes to\n%x, want\n%x", c.name, got, want)
		}
		back := reflect.New(reflect.TypeOf(c.msg).Elem())
		back.Interface().(message).decode(want)
		if !reflect.DeepEqual(back.Interface(), c.msg) {
			t.Errorf("%s decodes to %+v, want %+v", c.name, back.Elem(), c.msg)
		}
	}
}

func TestCommandNames(t *testing.T) {
	for c, want := range map[Command]string{1: "VERSION", 10: "REGION_WRITE", 13: "DEVICE_RESET", 14: "command 14", 999: "command 999"} {
		if got := c.String(); got != want {
			t.Errorf("command %d is %q, want %q", uint16(c), got, want)
		}
	}
	if got := FormatSetIRQs(0x24); got != "eventfd+trigger" {
		t.Errorf("flags 0x24 are %q", got)
	}
}
