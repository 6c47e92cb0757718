//go:build linux

package main

import (
	"strings"
	"testing"

	"github.com/safchain/ethtool"
)

func TestChange(t *testing.T) {
	for _, tc := range []struct {
		args string
		want ethtool.Channels
		err  string
	}{
		{"combined 2", ethtool.Channels{RxCount: 1, CombinedCount: 2}, ""},
		{"rx 3 tx 4", ethtool.Channels{RxCount: 3, TxCount: 4, CombinedCount: 9}, ""},
		{"other 0", ethtool.Channels{RxCount: 1, CombinedCount: 9}, ""},
		{"", ethtool.Channels{}, "pairs"},
		{"combined", ethtool.Channels{}, "pairs"},
		{"queues 2", ethtool.Channels{}, `"queues" is no kind`},
		{"combined -1", ethtool.Channels{}, `"-1" is not a number`},
		{"combined 4294967296", ethtool.Channels{}, "is not a number"},
	} {
		c := ethtool.Channels{RxCount: 1, CombinedCount: 9}
		err := change(&c, strings.Fields(tc.args))
		if tc.err == "" && (err != nil || c != tc.want) || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
			t.Errorf("%q: %+v, %v; want %+v, %q", tc.args, c, err, tc.want, tc.err)
		}
	}
}
