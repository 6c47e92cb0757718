// Package link lists and changes network interfaces through netlink. It knows interfaces and channels, not which driver is under test.
package link

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"irqlab/guestagent/agentapi"
	"irqlab/guestagent/fault"
	"irqlab/guestagent/kfile"
	"irqlab/guestagent/pci"
)

// Bounds on what a request may set.
const (
	maxMTU      = 65535
	maxCombined = 4096
)

// List returns all links in the kernel's order.
func List(r kfile.Root) ([]agentapi.Link, error) {
	links, err := netlink.LinkList()
	if err != nil && !errors.Is(err, netlink.ErrDumpInterrupted) {
		return nil, fmt.Errorf("listing links: %w", err)
	}
	out := make([]agentapi.Link, 0, len(links))
	for _, l := range links {
		d, err := describe(r, l)
		if errors.Is(err, unix.ENODEV) {
			continue // it left after it was listed
		}
		if err != nil {
			return nil, err
		}
		out = append(out, d)
	}
	return out, nil
}

func describe(r kfile.Root, l netlink.Link) (agentapi.Link, error) {
	a := l.Attrs()
	out := agentapi.Link{Name: a.Name, Index: a.Index, MAC: a.HardwareAddr.String(), MTU: a.MTU, Up: a.RawFlags&unix.IFF_UP != 0}
	device := "sys/class/net/" + a.Name + "/device"
	if d, err := r.LinkName(device, "driver"); err == nil {
		out.Driver = d
	}
	if d, err := r.LinkName(device); err == nil && pci.ValidAddress(d) {
		out.PCI = d
	}
	var err error
	if out.Driver != "" {
		out.Combined, out.MaxCombined, err = Combined(a.Index)
	}
	if err != nil {
		return out, fmt.Errorf("link %q: channels: %w", a.Name, err)
	}
	return out, nil
}

func find(name string) (netlink.Link, error) {
	l, err := netlink.LinkByName(name)
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) {
		return nil, fault.New(agentapi.CodeNotFound, "no link %q", name)
	}
	if err != nil {
		return nil, fmt.Errorf("link %q: %w", name, err)
	}
	return l, nil
}

// Set changes a link: channels first, then MTU, then up or down, so that one request can bring a link up as wanted.
func Set(r kfile.Root, p agentapi.SetLinkParams) (agentapi.Link, error) {
	if p.MTU < 0 || p.MTU > maxMTU || p.Combined < 0 || p.Combined > maxCombined {
		return agentapi.Link{}, fault.New(agentapi.CodeInvalid, "link %q: MTU %d or %d channels: out of range (0-%d, 0-%d; 0 leaves it)",
			p.Name, p.MTU, p.Combined, maxMTU, maxCombined)
	}
	l, err := find(p.Name)
	if err != nil {
		return agentapi.Link{}, err
	}
	if p.Combined > 0 {
		if err := SetCombined(l.Attrs().Index, p.Combined); err != nil {
			return agentapi.Link{}, fmt.Errorf("link %q: %d combined channels: %w", p.Name, p.Combined, err)
		}
	}
	if p.MTU > 0 {
		if err := netlink.LinkSetMTU(l, p.MTU); err != nil {
			return agentapi.Link{}, fmt.Errorf("link %q: MTU %d: %w", p.Name, p.MTU, err)
		}
	}
	if p.Up != nil {
		change, word := netlink.LinkSetDown, "down"
		if *p.Up {
			change, word = netlink.LinkSetUp, "up"
		}
		if err := change(l); err != nil {
			return agentapi.Link{}, fmt.Errorf("link %q: setting it %s: %w", p.Name, word, err)
		}
	}
	// What was asked for is done. A driver that resets its device may have taken the link away by now, or detached it, so that nobody can tell its channels.
	now, err := find(p.Name)
	if err != nil && fault.Reply(err).Code == agentapi.CodeNotFound {
		return agentapi.Link{Name: p.Name, Index: l.Attrs().Index}, nil
	}
	if err != nil {
		return agentapi.Link{}, err
	}
	out, err := describe(r, now)
	if errors.Is(err, unix.ENODEV) {
		err = nil
	}
	return out, err
}

// channels is a request of ethtool's generic netlink family about a link's channels (Documentation/networking/ethtool-netlink.rst).
func channels(index int, command uint8, flags int) (*nl.NetlinkRequest, error) {
	family, err := netlink.GenlFamilyGet(unix.ETHTOOL_GENL_NAME)
	if err != nil {
		return nil, fault.New(agentapi.CodeUnsupported, "this kernel has no ethtool netlink: %w", err)
	}
	req := nl.NewNetlinkRequest(int(family.ID), flags)
	req.AddData(&nl.Genlmsg{Command: command, Version: unix.ETHTOOL_GENL_VERSION})
	header := nl.NewRtAttr(unix.ETHTOOL_A_CHANNELS_HEADER|unix.NLA_F_NESTED, nil)
	header.AddRtAttr(unix.ETHTOOL_A_HEADER_DEV_INDEX, nl.Uint32Attr(uint32(index)))
	req.AddData(header)
	return req, nil
}

// Combined is the number of combined channels and the most there can be; 0 for a link that has none (ETHTOOL_MSG_CHANNELS_GET).
func Combined(index int) (now, most int, err error) {
	req, err := channels(index, unix.ETHTOOL_MSG_CHANNELS_GET, 0)
	if err != nil {
		return 0, 0, err
	}
	messages, err := req.Execute(unix.NETLINK_GENERIC, 0)
	if errors.Is(err, unix.EOPNOTSUPP) {
		return 0, 0, nil
	}
	if err != nil {
		return 0, 0, err
	}
	for _, m := range messages {
		if len(m) < nl.SizeofGenlmsg {
			return 0, 0, fmt.Errorf("answer of %d bytes", len(m))
		}
		attrs, err := nl.ParseRouteAttr(m[nl.SizeofGenlmsg:])
		if err != nil {
			return 0, 0, err
		}
		for _, a := range attrs {
			if len(a.Value) != 4 {
				continue
			}
			switch n := int(binary.NativeEndian.Uint32(a.Value)); a.Attr.Type {
			case unix.ETHTOOL_A_CHANNELS_COMBINED_COUNT:
				now = n
			case unix.ETHTOOL_A_CHANNELS_COMBINED_MAX:
				most = n
			}
		}
	}
	return now, most, nil
}

// SetCombined sets the number of combined channels (ETHTOOL_MSG_CHANNELS_SET).
func SetCombined(index, n int) error {
	req, err := channels(index, unix.ETHTOOL_MSG_CHANNELS_SET, unix.NLM_F_ACK)
	if err != nil {
		return err
	}
	req.AddData(nl.NewRtAttr(unix.ETHTOOL_A_CHANNELS_COMBINED_COUNT, nl.Uint32Attr(uint32(n))))
	_, err = req.Execute(unix.NETLINK_GENERIC, 0)
	return err
}

// LoopbackUp sets the loopback link up.
func LoopbackUp() error {
	l, err := find("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(l)
}
