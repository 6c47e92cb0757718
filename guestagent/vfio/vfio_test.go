package vfio

import (
	"errors"
	"io/fs"
	"os"
	"testing"
	"unsafe"
)

// TestABI compares with the numbers the C header expands to on x86-64.
func TestABI(t *testing.T) {
	for name, tc := range map[string]struct{ got, want uintptr }{
		"VFIO_GET_API_VERSION":        {getAPIVersion, 0x3b64},
		"VFIO_CHECK_EXTENSION":        {checkExtension, 0x3b65},
		"VFIO_SET_IOMMU":              {setIOMMU, 0x3b66},
		"VFIO_GROUP_GET_STATUS":       {groupGetStatus, 0x3b67},
		"VFIO_GROUP_SET_CONTAINER":    {groupSetContainer, 0x3b68},
		"VFIO_GROUP_GET_DEVICE_FD":    {groupGetDeviceFD, 0x3b6a},
		"VFIO_DEVICE_GET_REGION_INFO": {deviceGetRegionInfo, 0x3b6c},
		"VFIO_DEVICE_GET_IRQ_INFO":    {deviceGetIRQInfo, 0x3b6d},
		"VFIO_DEVICE_SET_IRQS":        {deviceSetIRQs, 0x3b6e},
		"sizeof vfio_group_status":    {unsafe.Sizeof(groupStatus{}), 8},
		"sizeof vfio_region_info":     {unsafe.Sizeof(regionInfo{}), 32},
		"offsetof region_info.offset": {unsafe.Offsetof(regionInfo{}.offset), 24},
		"sizeof vfio_irq_info":        {unsafe.Sizeof(irqInfo{}), 16},
		"vfio_irq_set header":         {unsafe.Offsetof(setIRQs{}.eventfd), setIRQsHeader},
	} {
		if tc.got != tc.want {
			t.Errorf("%s: %#x, want %#x", name, tc.got, tc.want)
		}
	}
}

func TestOpenWithoutVFIO(t *testing.T) {
	if _, err := os.Stat("/dev/vfio/vfio"); err == nil {
		t.Skip("this machine has VFIO")
	}
	f, err := Open("0000:81:00.0", "1")
	if f != nil || !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("%v, %v", f, err)
	}
}
